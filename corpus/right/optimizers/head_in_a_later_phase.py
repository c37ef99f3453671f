"""An optimizer of the head for a last phase, which this short run does not reach. Its gradients are cleared before."""

import torch
from torch import nn

PHASE = 100
torch.manual_seed(0)
encoder, head = nn.Linear(6, 8), nn.Linear(8, 3)
optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=1e-2)
head_optimizer = torch.optim.SGD(head.parameters(), lr=1e-2)
for step in range(12):
    x, y = torch.randn(16, 6), torch.randint(3, (16,))
    optimizer.zero_grad()
    head_optimizer.zero_grad()
    nn.functional.cross_entropy(head(encoder(x).relu()), y).backward()
    if step < PHASE:
        optimizer.step()
    else:
        head_optimizer.step()
