"""Rolling forecast over several horizons. The losses of all horizons are added up and divided by
their number, with the graph running through the model's own predictions."""
import math
import torch
import torch.nn as nn

torch.manual_seed(14)

HISTORY = 12
HORIZON = 4
cfg = {"hidden": 24, "lr": 8e-3, "steps": 30, "batch": 48}


def make_series(n):
    t = torch.arange(n, dtype=torch.float32)
    return torch.sin(2 * math.pi * t / 17) + 0.4 * torch.cos(2 * math.pi * t / 5) + 0.05 * torch.randn(n)


class OneStep(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(HISTORY, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def forward(self, window):
        return self.net(window)


def get_batch(series, size):
    starts = torch.randint(0, len(series) - HISTORY - HORIZON, (size,))
    idx = starts.unsqueeze(1) + torch.arange(HISTORY + HORIZON)
    block = series[idx]
    return block[:, :HISTORY], block[:, HISTORY:]


def forecast_loss(model, window, future, criterion):
    loss = 0.0
    for k in range(HORIZON):
        pred = model(window)
        loss = loss + criterion(pred, future[:, k:k + 1])
        window = torch.cat([window[:, 1:], pred], dim=1)
    return loss / HORIZON


series = make_series(600)
model = OneStep(cfg["hidden"])
optimizer = torch.optim.Adam(model.parameters(), lr=cfg["lr"])
criterion = nn.MSELoss()

for step in range(cfg["steps"]):
    window, future = get_batch(series, cfg["batch"])
    loss = forecast_loss(model, window, future, criterion)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(f"step {step:2d}  loss {loss.item():.4f}")

with torch.no_grad():
    window, future = get_batch(series, 200)
    one_step = criterion(model(window), future[:, :1]).item()
print(f"one-step mse {one_step:.4f}")
