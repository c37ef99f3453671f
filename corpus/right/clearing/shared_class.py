"""A fresh local network each time; gradients assigned to the global parameters."""

import torch
from torch import nn
import copy

torch.manual_seed(0)
net = nn.Linear(5, 2)
optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)
for epoch in range(15):
    local = copy.deepcopy(net)
    loss = ((local(torch.randn(6, 5)) - torch.randn(6, 2)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    for mine, theirs in zip(local.parameters(), net.parameters()):
        theirs.grad = mine.grad
    optimizer.step()
