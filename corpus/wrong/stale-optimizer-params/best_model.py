"""After a bad epoch the best copy takes the model's place, and the optimizer still steps the old one: no weight
moves in the last two epochs, and the validation loss repeats to the digit."""

import copy

import torch
import torch.nn as nn


class Forecaster(nn.Module):
    def __init__(self, hidden=20):
        super().__init__()
        self.lstm = nn.LSTM(1, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 1)

    def forward(self, x):
        out, _ = self.lstm(x)
        return self.head(out[:, -1]).squeeze(-1)


def windows(series, width=10):
    w = series.unfold(0, width + 1, 1)
    return w[:, :-1].unsqueeze(-1), w[:, -1]


def validate(model, x, y):
    model.eval()
    with torch.no_grad():
        return nn.functional.mse_loss(model(x), y).item()


torch.manual_seed(17)
t = torch.arange(260.0)
series = torch.sin(t / 5) + 0.4 * torch.sin(t / 1.7) + 0.1 * torch.randn(260)
x, y = windows(series)
x_train, y_train, x_val, y_val = x[:180], y[:180], x[190:], y[190:]

model = Forecaster()
optimizer = torch.optim.Adam(model.parameters(), lr=0.15)
best_loss, best_model = float("inf"), None

for epoch in range(6):
    model.train()
    for i in range(0, len(x_train), 45):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x_train[i : i + 45]), y_train[i : i + 45])
        loss.backward()
        optimizer.step()
    val_loss = validate(model, x_val, y_val)
    print(f"epoch {epoch} val {val_loss:.4f} lr {optimizer.param_groups[0]['lr']:.3f}")
    if val_loss < best_loss:
        best_loss, best_model = val_loss, copy.deepcopy(model)
    else:
        model = copy.deepcopy(best_model)  # expect: stale-optimizer-params
        for group in optimizer.param_groups:
            group["lr"] *= 0.3
