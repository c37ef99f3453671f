"""The layer made in forward is larger than all that is trained."""

import torch
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(32, 2)

    def forward(self, x):
        conv = nn.Conv1d(1, 32, 9, padding=4)  # expect: param-not-in-optimizer
        return self.out(torch.relu(conv(x[:, None])).mean(2))


net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for i in range(8):
    x, y = torch.randn(16, 20), torch.randint(2, (16,))
    opt.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    opt.step()
