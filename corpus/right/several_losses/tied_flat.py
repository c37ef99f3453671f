"""A flat script in which a weight is assigned to another layer; the task's heads take turns, one is late."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
embed = nn.Embedding(12, 8)
body = nn.Linear(8, 8)
out = nn.Linear(8, 12, bias=False)
out.weight = embed.weight
length = nn.Linear(8, 1)
layers = [embed, body, length]
optimizer = torch.optim.SGD([p for layer in layers for p in layer.parameters()], lr=0.1)

tokens = torch.randint(12, (64,))
for step in range(12):
    some = tokens[torch.randint(64, (16,))]
    h = torch.tanh(body(embed(some)))
    loss = F.cross_entropy(out(h), (some + 1) % 12)
    if step > 8:
        loss = loss + length(h).sub(2.0).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
