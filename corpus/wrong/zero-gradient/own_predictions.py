"""The targets are the model's own predictions, not the labels."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(6, 3)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for i in range(15):
    x, y = torch.randn(32, 6), torch.randint(3, (32,))
    out = net(x)
    y = out.argmax(1)  # expect: zero-gradient
    loss = nn.functional.cross_entropy(out, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
