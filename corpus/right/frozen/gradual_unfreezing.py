"""Looks like a backbone that no optimizer updates: its group is added when it is unfrozen."""

import torch
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.backbone(x))


def fit(net, optimizer, n):
    for _ in range(n):
        x = torch.randn(16, 8)
        loss = nn.functional.cross_entropy(net(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


net = Net()
net.backbone.requires_grad_(False)
optimizer = torch.optim.Adam(filter(lambda p: p.requires_grad, net.parameters()), lr=1e-3)
print("head", fit(net, optimizer, 6))
net.backbone.requires_grad_(True)
optimizer.add_param_group({"params": net.backbone.parameters(), "lr": 1e-4})
print("all", fit(net, optimizer, 6))
