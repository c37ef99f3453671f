"""GRU forecaster. Gradients are clipped between backward and step, with a small limit that is
active in most steps."""
import numpy as np
import torch
from torch import nn

SEED = 13
WINDOW = 20


def series(n=500):
    rng = np.random.default_rng(SEED)
    t = np.arange(n)
    y = np.sin(t / 7.0) * 3 + 0.5 * np.sin(t / 2.3) + rng.normal(0, 0.2, n)
    spikes = rng.choice(n, 12, replace=False)
    y[spikes] += rng.normal(0, 8, 12)
    return y.astype(np.float32)


def windows(y):
    xs = np.stack([y[i:i + WINDOW] for i in range(len(y) - WINDOW)])
    ys = y[WINDOW:]
    return torch.from_numpy(xs).unsqueeze(-1), torch.from_numpy(ys)


class Forecaster(nn.Module):
    def __init__(self, hidden=16):
        super().__init__()
        self.gru = nn.GRU(1, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, 1)

    def forward(self, x):
        out, _ = self.gru(x)
        return self.fc(out[:, -1]).squeeze(-1)


torch.manual_seed(SEED)
x, y = windows(series())
model = Forecaster()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
loss_fn = nn.MSELoss()
max_norm = 0.25

step = 0
for epoch in range(2):
    order = torch.randperm(len(x))
    epoch_loss = 0.0
    for chunk in order.split(40):
        optimizer.zero_grad()
        loss = loss_fn(model(x[chunk]), y[chunk])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        epoch_loss += loss.item() * len(chunk)
        step += 1
    print(f"epoch {epoch + 1}: mse {epoch_loss / len(x):.4f} after {step} steps")
