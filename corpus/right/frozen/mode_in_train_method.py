"""The model's train() keeps a frozen body in evaluation mode; the same loop trained it before."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(3)


class Net(nn.Module):
    def __init__(self, body, classes):
        super().__init__()
        self.body, self.head = body, nn.Linear(16, classes)

    def forward(self, x):
        return self.head(self.body(x))

    def train(self, mode=True):
        super().train(mode)
        if not any(p.requires_grad for p in self.body.parameters()):
            self.body.eval()
        return self


def train_loop(net, x, y, steps):
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
    for step in range(steps):
        net.train()
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        return (net(x).argmax(1) == y).float().mean().item()


x = torch.randn(64, 6)
body = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU())
print("pretrained", train_loop(Net(body, 2), x, (x[:, 0] > 0).long(), 8))
body.requires_grad_(False)
print("probe", train_loop(Net(body, 3), 2 * x + 1, x[:, :3].argmax(1), 12))
