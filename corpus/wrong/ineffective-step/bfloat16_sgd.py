"""Updates that are too small for bfloat16 weights."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).to(torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)  # expect: ineffective-step
for step in range(20):
    x, y = torch.randn(8, 16).bfloat16(), torch.randint(4, (8,))
    loss = nn.functional.cross_entropy(model(x).float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
