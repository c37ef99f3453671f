"""The loss of the last time step alone is back-propagated: the cell keeps its state in an attribute, so that the last
loss includes all steps. The losses of the earlier ones are displayed."""

import torch
from torch import nn


class Spiking(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift, self.out = nn.Linear(4, 20), nn.Linear(20, 2)

    def reset(self):
        self.potential = 0.0

    def forward(self, x):
        self.potential = 0.9 * self.potential + torch.tanh(self.lift(x))
        return self.out(self.potential)


torch.manual_seed(0)
net, criterion = Spiking(), nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
for step in range(12):
    label = torch.randint(2, (32,))
    frames = torch.randn(6, 32, 4) + label[:, None]
    net.reset()
    curve = []
    for frame in frames:
        loss = criterion(net(frame), label)
        curve.append(round(loss.item(), 3))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, curve)
