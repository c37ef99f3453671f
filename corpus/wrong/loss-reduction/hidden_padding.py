"""A language model hides the padding from its attention, but the loss still counts the padding as next tokens."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
WORDS, WIDTH, LENGTH = 30, 16, 12


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.heads = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WORDS)

    def forward(self, ids, mask):
        n = ids.size(1)
        x = self.words(ids) + self.places(torch.arange(n))
        q, k, v = self.heads(x).chunk(3, -1)
        visible = torch.ones(n, n).tril().bool() & mask[:, None, :]
        weights = (q @ k.transpose(1, 2) / WIDTH**0.5).masked_fill(~visible, float("-inf")).softmax(-1)
        return self.out(x + weights @ v)


def batch():
    lengths = torch.randint(4, LENGTH + 1, (16, 1))
    mask = torch.arange(LENGTH) < lengths
    return ((torch.arange(LENGTH) + torch.randint(0, 20, (16, 1))) % 27 + 2) * mask, mask


model = Decoder()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(15):
    ids, mask = batch()
    logits = model(ids[:, :-1], mask[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())  # expect: loss-reduction
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")
