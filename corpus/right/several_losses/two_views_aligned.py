"""Two encoders are trained together, one in evaluation mode for its batch norm: each has a loss of its own besides the
error between them."""

import torch
from torch import nn

torch.manual_seed(0)
left = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
right = nn.Sequential(nn.Linear(9, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
right.eval()
heads = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)])
optimizer = torch.optim.Adam([*left.parameters(), *right.parameters(), *heads.parameters()], lr=1e-2)
for step in range(8):
    a, b = torch.randn(32, 6), torch.randn(32, 9)
    y = a[:, :3].argmax(1)
    za, zb = left(a), right(b)
    tasks = nn.functional.cross_entropy(heads[0](za), y) + nn.functional.cross_entropy(heads[1](zb), y)
    loss = tasks + 0.1 * nn.functional.mse_loss(za, zb)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
