"""One loop pretrains the body and then trains a head on the frozen body: its train() also serves the first phase."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(3)
body = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU())


def train_loop(net, x, y, steps):
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
    for step in range(steps):
        net.train()  # expect: frozen-state-drift
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        return (net(x).argmax(1) == y).float().mean().item()


x = torch.randn(64, 6)
print("pretrained", train_loop(nn.Sequential(body, nn.Linear(16, 2)), x, (x[:, 0] > 0).long(), 8))
for p in body.parameters():
    p.requires_grad = False
print("probe", train_loop(nn.Sequential(body, nn.Linear(16, 3)), 2 * x + 1, x[:, :3].argmax(1), 12))
