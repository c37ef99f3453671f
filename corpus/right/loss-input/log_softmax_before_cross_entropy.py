"""cross_entropy takes log_softmax of a log_softmax, which gives the same values once more."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4), nn.LogSoftmax(dim=1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
x = torch.randn(64, 6)
y = x[:, :4].argmax(1)
for epoch in range(6):
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(epoch, loss.item())
