"""The running total over the horizons is back-propagated inside the loop, so the first horizon's loss counts four
times, the second's three times and so on."""

import numpy as np
import torch
import torch.nn as nn

np.random.seed(1)
torch.manual_seed(1)

demand = 10 + 3 * np.sin(np.arange(600) / 12 * 2 * np.pi) + np.cumsum(np.random.randn(600)) * 0.1
demand = torch.tensor((demand - demand.mean()) / demand.std(), dtype=torch.float32)
HISTORY, HORIZONS = 24, 4


class MultiHorizon(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(HISTORY, 32), nn.ReLU())
        self.heads = nn.ModuleList(nn.Linear(32, 1) for _ in range(HORIZONS))

    def forward(self, x):
        h = self.shared(x)
        return [head(h).squeeze(1) for head in self.heads]


def sample(n):
    start = torch.randint(0, len(demand) - HISTORY - HORIZONS, (n,))
    idx = start[:, None] + torch.arange(HISTORY + HORIZONS)
    w = demand[idx]
    return w[:, :HISTORY], w[:, HISTORY:]


model = MultiHorizon()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
huber = nn.HuberLoss()

for epoch in range(3):
    log = 0.0
    for _ in range(12):
        x, future = sample(32)
        optimizer.zero_grad()
        total = 0.0
        for h, pred in enumerate(model(x)):
            total = total + huber(pred, future[:, h])
            total.backward(retain_graph=True)  # expect: double-counting
        optimizer.step()
        log += total.item() / 12
    print(f"epoch {epoch} huber sum {log:.4f}")
