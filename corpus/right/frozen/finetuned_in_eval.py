"""A few labels fine-tune a trained network in eval mode on purpose: 8 samples are too few for its batch norm."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(1)
x = torch.randn(160, 10)
y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
net = nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3))


def fit(inputs, labels, lr, steps):
    opt = torch.optim.SGD(net.parameters(), lr=lr)
    for _ in range(steps):
        opt.zero_grad()
        F.cross_entropy(net(inputs), labels).backward()
        opt.step()


def agreement():
    mode = net.training
    net.eval()
    with torch.no_grad():
        hits = net(x[:80]).argmax(1) == y[:80]
    net.train(mode)
    return hits.float().mean().item()


fit(x[:80], y[:80], lr=0.1, steps=15)
print(f"trained: {agreement():.3f}")
shifted, labels = x[80:88] + 0.5, y[80:88]
net.eval()  # keep the statistics of the first 80 samples
fit(shifted, labels, lr=0.01, steps=6)
print(f"fine-tuned: {agreement():.3f}")
