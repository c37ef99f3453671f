"""Looks like a missing zero_grad and a detached state: the chunks of one sequence add up their gradients,
weighted by their share of its length, for one step at its end."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(4)
CHUNK = 8

tagger = nn.LSTM(5, 20, batch_first=True)
head = nn.Linear(20, 3)
params = [*tagger.parameters(), *head.parameters()]
optimizer = torch.optim.RAdam(params, lr=1e-2)


def make_sequence():
    length = int(torch.randint(18, 40, ()))
    x = torch.randn(1, length, 5)
    y = (x[..., 0].cumsum(1) > 0).long() + (x[..., 1] > 1).long()
    return x, y


sequences = [make_sequence() for _ in range(8)]

for epoch in range(2):
    total = 0.0
    for x, y in sequences:
        length = x.shape[1]
        state = None
        optimizer.zero_grad()
        for xc, yc in zip(x.split(CHUNK, dim=1), y.split(CHUNK, dim=1)):
            out, state = tagger(xc, state)
            state = tuple(s.detach() for s in state)
            loss = F.cross_entropy(head(out).squeeze(0), yc.squeeze(0), reduction="sum") / length
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(params, 5.0)
        optimizer.step()
    print(f"epoch {epoch}: {total / len(sequences):.4f}")
