"""The objective with the consistency term is built and logged. The step gets only the supervised loss."""

import torch
import torch.nn.functional as F
from torch import nn


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.out = nn.Linear(16, 4)

    def forward(self, x):
        return self.out(self.body(x))


def objective(net, x, y, unlabelled, metrics):
    supervised = F.cross_entropy(net(x), y)
    target = net(unlabelled).softmax(-1).detach()
    noisy = net(unlabelled + 0.1 * torch.randn_like(unlabelled))
    consistency = F.mse_loss(noisy.softmax(-1), target)
    total = supervised + 5.0 * consistency  # expect: term-left-out
    metrics["total"] = total.item()
    metrics["consistency"] = consistency.item()
    return supervised


torch.manual_seed(0)
net, metrics = Student(), {}
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(12):
    loss = objective(net, torch.randn(16, 8), torch.randint(4, (16,)), torch.randn(32, 8), metrics)
    opt.zero_grad()
    loss.backward()
    opt.step()
print(metrics)
