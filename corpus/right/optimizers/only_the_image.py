"""The optimizer holds the image, and the network is fixed."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8)).eval()
for p in net.parameters():
    p.requires_grad_(False)
goal = net(torch.randn(2, 4))
image = torch.zeros(2, 4, requires_grad=True)
optimizer = torch.optim.Adam([image], lr=0.1)
for step in range(30):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(net(image), goal)
    loss.backward()
    optimizer.step()
print(loss.item())
