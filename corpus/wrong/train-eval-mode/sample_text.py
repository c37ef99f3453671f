"""Sampling in the middle of an epoch switches the dropout off for the rest of it: 14 of 16 updates are made
without it, with gradients off by 42% and more."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(101)

text = "the quick brown fox jumps over the lazy dog and the dog sleeps on " * 12
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
ids = torch.tensor([stoi[c] for c in text])


class CharRNN(nn.Module):
    def __init__(self, n_chars, hidden=48):
        super().__init__()
        self.embed = nn.Embedding(n_chars, hidden)
        self.drop = nn.Dropout(0.3)
        self.gru = nn.GRU(hidden, hidden, num_layers=2, dropout=0.3, batch_first=True)
        self.out = nn.Linear(hidden, n_chars)

    def forward(self, x, state=None):
        h, state = self.gru(self.drop(self.embed(x)), state)
        return self.out(self.drop(h)), state


@torch.no_grad()
def sample(model, prompt="the ", length=20):
    model.eval()  # expect: train-eval-mode
    x, state, out = torch.tensor([[stoi[c] for c in prompt]]), None, prompt
    for _ in range(length):
        logits, state = model(x, state)
        x = torch.multinomial(logits[0, -1].softmax(-1), 1)[None]
        out += chars[x.item()]
    return out


def chunks(block=24, batch=4):
    starts = torch.randperm(len(ids) - block - 1)[: 8 * batch].view(8, batch)
    for row in starts:
        yield (
            torch.stack([ids[s : s + block] for s in row]),
            torch.stack([ids[s + 1 : s + 1 + block] for s in row]),
        )


model = CharRNN(len(chars))
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
for epoch in range(2):
    model.train()
    for n, (x, y) in enumerate(chunks()):
        logits, _ = model(x)
        loss = F.cross_entropy(logits.transpose(1, 2), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if n % 4 == 0:
            print(f"{epoch}.{n} {loss.item():.3f} {sample(model)!r}")
