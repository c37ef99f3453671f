"""zero_grad(set_to_none=False) zeroes the tensor in place, which both models share."""

import torch
from torch import nn

torch.manual_seed(0)
net, local = nn.Linear(5, 2), nn.Linear(5, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
for step in range(15):
    local.load_state_dict(net.state_dict())
    optimizer.zero_grad(set_to_none=False)
    loss = ((local(torch.randn(6, 5)) - torch.randn(6, 2)) ** 2).mean()
    loss.backward()
    for mine, theirs in zip(local.parameters(), net.parameters()):
        theirs.grad = mine.grad
    optimizer.step()
