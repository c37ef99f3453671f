"""The loss, a mean over 16 windows of the series, is divided by 16 again and not by the 4 backwards: the
gradients are a quarter of what they should be, and so is the way the weights go in six updates (0.29).
"""

import math

import torch
import torch.nn as nn

torch.manual_seed(5)


class Forecaster(nn.Module):
    def __init__(self, hidden_size=24):
        super().__init__()
        self.lstm = nn.LSTM(1, hidden_size, batch_first=True)
        self.linear = nn.Linear(hidden_size, 1)

    def forward(self, seq):
        out, _ = self.lstm(seq)
        return self.linear(out[:, -1])


def sliding_windows(series, lookback):
    xs = series.unfold(0, lookback, 1)[:-1]
    return xs.unsqueeze(-1), series[lookback:].unsqueeze(-1)


def get_batch(x, y, size):
    idx = torch.randint(len(x), (size,))
    return x[idx], y[idx]


def train(model, x, y, *, updates=6, accumulate=4, batch_size=16, lr=0.2):
    criterion = nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    history = []
    for _ in range(updates):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(accumulate):
            xb, yb = get_batch(x, y, batch_size)
            loss = criterion(model(xb), yb)
            total += loss.item()
            loss = loss / batch_size  # expect: accumulation-scaling
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        history.append(total / accumulate)
    return history


if __name__ == "__main__":
    t = torch.arange(0, 60, 0.25)
    series = torch.sin(2 * math.pi * t / 12) + 0.05 * torch.randn(len(t))
    x, y = sliding_windows(series, lookback=12)
    history = train(Forecaster(), x, y)
    print("mse by update:", [round(h, 4) for h in history])
