"""Sums rather than means are back-propagated and no loss is divided by the number of micro-batches: each is divided by
the number of tokens of the whole window."""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(0)
torch.manual_seed(0)
IGNORE = -100


def example():
    n = random.choice([3, 5, 8, 20])
    ids = [random.randrange(12)]
    for _ in range(n):
        ids.append((ids[-1] * 2 + 1) % 12)
    return ids


def to_batch(items):
    width = max(map(len, items))
    x = torch.zeros(len(items), width - 1, dtype=torch.long)
    y = torch.full((len(items), width - 1), IGNORE)
    for i, s in enumerate(items):
        x[i, : len(s) - 1] = torch.tensor(s[:-1])
        y[i, : len(s) - 1] = torch.tensor(s[1:])
    return x, y


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(12, 16)
        self.gru = nn.GRU(16, 16, batch_first=True)
        self.out = nn.Linear(16, 12)

    def forward(self, x):
        return self.out(self.gru(self.emb(x))[0])


data = [example() for _ in range(80)]
model, ACCUM = LM(), 4
opt = torch.optim.Adam(model.parameters(), lr=0.02)
for epoch in range(2):
    random.shuffle(data)
    micros = [to_batch(data[i : i + 5]) for i in range(0, len(data), 5)]
    nll, count = 0.0, 0
    for k in range(0, len(micros), ACCUM):
        window = micros[k : k + ACCUM]
        n_tokens = sum((y != IGNORE).sum() for _, y in window)
        for x, y in window:
            loss = (
                F.cross_entropy(model(x).transpose(1, 2), y, ignore_index=IGNORE, reduction="sum") / n_tokens
            )
            loss.backward()
            nll += loss.item() * n_tokens.item()
        count += n_tokens.item()
        opt.step()
        opt.zero_grad()
    print(f"epoch {epoch} nll/token {nll / count:.4f}")
