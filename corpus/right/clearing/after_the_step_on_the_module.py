"""Looks as if the first backward met uncleared gradients: the module, not the optimizer, clears after each
step."""

import torch
import torch.nn.functional as F
from torch import nn


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 3)
        self.conv2 = nn.Conv2d(6, 12, 3)
        self.fc = nn.Linear(12 * 2 * 2, 4)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))


def blobs(n, size=14):
    y = torch.randint(0, 4, (n,))
    x = 0.3 * torch.randn(n, 1, size, size)
    half = size // 2
    for i, c in enumerate(y.tolist()):
        r, s = divmod(c, 2)
        x[i, 0, r * half : (r + 1) * half, s * half : (s + 1) * half] += 1
    return x, y


def train_one_epoch(net, optimizer, x, y, batch_size=24):
    order = torch.randperm(len(x))
    total = 0
    for idx in order.split(batch_size):
        loss = F.cross_entropy(net(x[idx]), y[idx])
        loss.backward()
        optimizer.step()
        net.zero_grad()
        total += loss.item() * len(idx)
    return total / len(x)


torch.manual_seed(5)
net = LeNet()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)
x, y = blobs(144)
for epoch in range(1, 3):
    print("Epoch", epoch, "loss", round(train_one_epoch(net, optimizer, x, y), 4))
