"""The loss of the second target is computed and printed, but only the first loss is back-propagated: the second head keeps
its random values."""

import torch
from sklearn.datasets import load_linnerud
from torch import nn

torch.manual_seed(0)
table = load_linnerud()
x = torch.tensor(table.data, dtype=torch.float32)
y = torch.tensor(table.target, dtype=torch.float32)
x, y = (x - x.mean(0)) / x.std(0), (y - y.mean(0)) / y.std(0)


class TwoTargets(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 16), nn.Tanh())
        self.weight_head = nn.Linear(16, 1)
        self.pulse_head = nn.Linear(16, 1)

    def forward(self, x):
        h = self.body(x)
        return self.weight_head(h), self.pulse_head(h)


model = TwoTargets()
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
criterion = nn.SmoothL1Loss()
for epoch in range(3):
    for rows in torch.randperm(20).split(5):
        optimizer.zero_grad()
        weights, pulses = model(x[rows])
        of_weight = criterion(weights, y[rows, :1])
        of_pulse = criterion(pulses, y[rows, 2:])  # expect: unreached-parameter
        of_weight.backward()
        optimizer.step()
    print(f"epoch {epoch} weight {of_weight.item():.3f} pulse {of_pulse.item():.3f}")
