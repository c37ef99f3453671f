"""One net is used forty times in a forward (steps of a Runge-Kutta solver), so its gradient is a sum of as many parts."""

import torch
import torch.nn as nn


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 2))
        for m in self.net:
            if isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, std=0.1)
                nn.init.zeros_(m.bias)

    def forward(self, y):
        return self.net(y**3)


def rk4(f, y, dt, n):
    path = [y]
    for _ in range(n):
        k1 = f(y)
        k2 = f(y + dt / 2 * k1)
        k3 = f(y + dt / 2 * k2)
        k4 = f(y + dt * k3)
        y = y + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        path.append(y)
    return torch.stack(path)


torch.manual_seed(0)
A = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]])
with torch.no_grad():
    truth = rk4(lambda y: (y**3) @ A, torch.tensor([[2.0, 0.0]]), 0.025, 200)

func = Field()
optimizer = torch.optim.RMSprop(func.parameters(), lr=2e-3)
for epoch in range(2):
    for _ in range(8):
        start = torch.randint(0, 190, (16,))
        target = torch.stack([truth[start + i, 0] for i in range(11)])
        pred = rk4(func, truth[start, 0], 0.025, 10)
        loss = (pred - target).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} L1 {loss.item():.5f}")
