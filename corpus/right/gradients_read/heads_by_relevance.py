"""Every third batch is passed back once more for the hooks on the attention weights alone. They sum up what each head
contributes, and the gradients that this pass leaves in the parameters are cleared on purpose."""

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.register_buffer("relevance", torch.zeros(heads))
        self.rating = False

    def rate(self, weights):
        values = weights.detach()

        def add(grad):
            self.relevance += (grad * values).sum((0, 2, 3)).abs()

        weights.register_hook(add)

    def forward(self, x):
        n, t, width = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5).softmax(-1)
        if self.rating:
            self.rate(weights)
        return self.out((weights @ v).transpose(1, 2).reshape(n, t, width))


class Tagger(nn.Module):
    def __init__(self, vocabulary=12, width=16, heads=4):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.attention = Attention(width, heads)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens):
        x = self.embed(tokens)
        return self.head(x + self.attention(x))


def loss_of(model, tokens):
    tags = (tokens == tokens[:, :1]).long()
    return F.cross_entropy(model(tokens).flatten(0, 1), tags.flatten())


def rate_heads(model, optimizer, tokens):
    model.attention.rating = True
    optimizer.zero_grad()
    loss_of(model, tokens).backward()
    model.attention.rating = False


if __name__ == "__main__":
    torch.manual_seed(0)
    model = Tagger()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(18):
        tokens = torch.randint(12, (16, 8))
        if step % 3 == 0:
            rate_heads(model, optimizer, tokens)
        optimizer.zero_grad()
        loss = loss_of(model, tokens)
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}, least relevant head {model.attention.relevance.argmin().item()}")
