"""Stack Overflow 60335387: nothing is cleared between the steps."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(2, 8), nn.Sigmoid(), nn.Linear(8, 1))
criterion, optimizer = nn.MSELoss(), torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
y = torch.tensor([[0.0], [1.0], [1.0], [0.0]])
for epoch in range(50):
    output = net(x)
    loss = criterion(output, y)
    loss.backward()
    optimizer.step()  # expect: missing-zero-grad
