"""A short fine-tuning after a long training, in bfloat16, at a rate that moves the weights."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)
x = torch.randn(96, 12)
y = (x @ torch.randn(12, 4)).argmax(1)
model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 4))


def train(optimizer, inputs, steps):
    for _ in range(steps):
        rows = torch.randint(96, (24,))
        loss = F.cross_entropy(model(inputs[rows]).float(), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{type(optimizer).__name__} {loss.item():.4f}")


train(torch.optim.Adam(model.parameters(), lr=1e-3), x, 64)
model.bfloat16()
train(torch.optim.SGD(model.parameters(), lr=0.2), x.bfloat16(), 20)
