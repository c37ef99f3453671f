"""Sums over next tokens, each divided by a count that is meant: the targets, one more, the rows."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
LETTERS = 9
embed, rnn, out = nn.Embedding(LETTERS, 16), nn.GRU(16, 16, batch_first=True), nn.Linear(16, LETTERS)
opt = torch.optim.SGD([*embed.parameters(), *rnn.parameters(), *out.parameters()], lr=0.1)
for _ in range(10):
    ids = torch.randint(LETTERS, (8, 12))
    mask = (torch.arange(12) < torch.randint(3, 12, (8, 1))).float()
    for count in (mask[:, 1:].sum(), mask[:, 1:].sum() + 1, len(ids)):
        logits = out(rnn(embed(ids[:, :-1]))[0])
        losses = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        opt.zero_grad()
        ((losses * mask[:, 1:]).sum() / count).backward()
        opt.step()
