"""The exponential decay is set up but never advanced, so the rate stays at its start value throughout."""

import numpy as np
import torch
from torch import nn

np.random.seed(0)
torch.manual_seed(0)

t = np.linspace(0, 10 * np.pi, 400)
series = (np.sin(t) + 0.3 * np.sin(3.1 * t) + 0.05 * np.random.randn(len(t))).astype(np.float32)
WINDOW = 24
windows = np.lib.stride_tricks.sliding_window_view(series, WINDOW + 1)[::4]
inputs = torch.tensor(windows[:, :-1].copy()).unsqueeze(-1)
targets = torch.tensor(windows[:, -1].copy()).unsqueeze(-1)


class Forecaster(nn.Module):
    def __init__(self, hidden=16):
        super().__init__()
        self.gru = nn.GRU(1, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 1)

    def forward(self, x):
        _, h = self.gru(x)
        return self.out(h[-1])


net = Forecaster()
optimizer = torch.optim.RMSprop(net.parameters(), lr=0.02)
lr_scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)  # expect: scheduler-cadence

for epoch in range(4):
    perm = np.random.permutation(len(inputs))
    losses = []
    for b in range(0, len(perm), 32):
        xb, yb = inputs[perm[b : b + 32]], targets[perm[b : b + 32]]
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(xb), yb)
        loss.backward()
        optimizer.step()  # expect: scheduler-cadence
        losses.append(loss.item())
    print(f"epoch {epoch} lr {lr_scheduler.get_last_lr()[0]:.4f} mse {np.mean(losses):.4f}")
