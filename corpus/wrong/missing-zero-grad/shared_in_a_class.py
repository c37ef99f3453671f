"""A worker class; gradients assigned to the global parameters."""

import torch
from torch import nn

torch.manual_seed(0)


class Worker:
    def __init__(self, global_net, optimizer):
        self.global_net, self.optimizer = global_net, optimizer
        self.net = nn.Linear(5, 2)

    def sync(self):
        self.net.load_state_dict(self.global_net.state_dict())

    def update(self, x, y):
        loss = ((self.net(x) - y) ** 2).mean()
        self.optimizer.zero_grad()  # expect: missing-zero-grad
        loss.backward()
        for mine, theirs in zip(self.net.parameters(), self.global_net.parameters()):
            theirs.grad = mine.grad
        self.optimizer.step()
        return loss.item()


net = nn.Linear(5, 2)
worker = Worker(net, torch.optim.RMSprop(net.parameters(), lr=1e-3))
for epoch in range(15):
    worker.sync()
    worker.update(torch.randn(6, 5), torch.randn(6, 2))
