"""Views of parameters that are made once share their memory, so they follow each step: a transposed output layer and
the rows of a table of positions."""

import torch
from torch import nn

torch.manual_seed(0)
table = nn.Parameter(torch.randn(20, 8) * 0.1)
readout = nn.Parameter(torch.randn(4, 8) * 0.1)
optimizer = torch.optim.SGD([table, readout], lr=0.2)
positions, transposed = table[:10], readout.t()

for step in range(15):
    x = torch.randn(10, 8)
    target = torch.randint(4, (10,))
    loss = nn.functional.cross_entropy((x + positions) @ transposed, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.3f}")
