"""A churn model ends with a softmax layer after its single output: all probabilities are 1."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(128, 10)
y = (x[:, :1] > 0).float()
net = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1), nn.Softmax(-1))
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(3):
    for rows, wanted in zip(x.split(32), y.split(32)):
        optimizer.zero_grad()
        probability = net(rows)  # expect: zero-gradient
        criterion(probability, wanted).backward()
        optimizer.step()
