"""The weights of the two losses are a plain tensor of a module that has no parameters: parameters() returns none, and
the weights stay 1."""

import torch
from torch import nn

torch.manual_seed(0)


class Balance(nn.Module):
    def __init__(self, losses=2):
        super().__init__()
        self.log_sigma = torch.zeros(losses, requires_grad=True)  # expect: param-not-in-optimizer

    def forward(self, *losses):
        return sum((-s).exp() * loss + s for s, loss in zip(self.log_sigma, losses, strict=True))


x = torch.randn(200, 6)
height, width = x[:, :1] * x[:, 1:2], x[:, 2:3].abs() * 3
net = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 2))
balance = Balance()
everything = list(net.parameters()) + list(balance.parameters())
optimizer = torch.optim.Adam(everything, lr=0.01)
criterion = nn.MSELoss()

for epoch in range(3):
    for part in torch.randperm(200).split(50):
        output = net(x[part])
        loss = balance(criterion(output[:, :1], height[part]), criterion(output[:, 1:], width[part]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.3f} weights {(-balance.log_sigma).exp().tolist()}")
