"""MSELoss of (10, 1) and (10,), in a helper that gets the loss function."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 1)

    def forward(self, x):
        return self.lin(x)


def fit(model, data, loss_fn, opt):
    for x, y in data:
        opt.zero_grad()
        loss = loss_fn(model(x), y)  # expect: unintended-broadcast
        loss.backward()
        opt.step()


torch.manual_seed(0)
net = Net()
data = [(torch.randn(10, 3), torch.randn(10)) for _ in range(15)]
fit(net, data, nn.MSELoss(), torch.optim.SGD(net.parameters(), 0.01))
