"""Loops over parameters that rebind their variable, but write into the parameter, or use the new tensor."""

import copy

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
average = copy.deepcopy(net).requires_grad_(False)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for step in range(20):
    x = torch.randn(16, 4)
    loss = (net(x).squeeze(1) - x.sum(1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for kept, param in zip(average.parameters(), net.parameters()):
            kept = kept.mul_(0.9).add_(0.1 * param)
        for param in net.parameters():
            param = param.clamp_(-1, 1)
        sizes = []
        for param in net.parameters():
            param = param * 100
            sizes.append(param.norm())
        for name, param in net.named_parameters():
            param = torch.clamp(param, -0.9, 0.9)
            net.get_parameter(name).copy_(param)
print(f"{loss.item():.4f} {sum(sizes).item():.3f} {average[0].weight.norm():.3f}")
