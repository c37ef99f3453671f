"""The output layer is made in each forward."""

import torch
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(4, 8)

    def forward(self, x):
        h = torch.relu(self.fc1(x))
        return nn.Linear(8, 2)(h)  # expect: param-not-in-optimizer


net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for i in range(12):
    x, y = torch.randn(16, 4), torch.randint(2, (16,))
    opt.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    opt.step()
