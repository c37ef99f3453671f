"""Each sensor has a head of its own. Every head's loss is logged, but only the last one is back-propagated."""

import torch
from torch import nn

torch.manual_seed(0)
SENSORS = ("heat", "wind", "rain")
trunk = nn.Sequential(nn.Linear(6, 16), nn.ReLU())
heads = nn.ModuleDict({sensor: nn.Linear(16, 1) for sensor in SENSORS})
optimizer = torch.optim.Adam([*trunk.parameters(), *heads.parameters()], lr=1e-2)
error = nn.MSELoss()
logged = dict.fromkeys(SENSORS, 0.0)
for step in range(20):
    x = torch.randn(32, 6)
    targets = {sensor: x[:, i : i + 2].sum(1, keepdim=True) for i, sensor in enumerate(SENSORS)}
    hidden = trunk(x)
    for sensor in SENSORS:
        loss = error(heads[sensor](hidden), targets[sensor])  # expect: term-left-out
        logged[sensor] += loss.item()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(" ".join(f"{sensor} {total / 20:.3f}" for sensor, total in logged.items()))
