"""The log scale starts below the lower end of its clamp, where the gradient is zero for ever: the scale stays
at 0.135, and the loss ends at 11.7, where one that starts inside ends at 7.0."""

import math

import torch
import torch.nn as nn
import torch.utils.data as data

torch.manual_seed(100)
LOG_SCALE_MIN, LOG_SCALE_MAX = -2.0, 2.0


class HeteroscedasticRegressor(nn.Module):
    def __init__(self, d_in, d_hidden):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d_in, d_hidden), nn.ELU(), nn.Linear(d_hidden, 1))
        self.log_scale = nn.Parameter(torch.tensor(-3.0))  # expect: zero-gradient

    def forward(self, x):
        log_scale = self.log_scale.clamp(LOG_SCALE_MIN, LOG_SCALE_MAX)  # expect: zero-gradient
        return self.net(x).squeeze(1), log_scale


def gaussian_nll(mean, log_scale, target):
    z = (target - mean) * torch.exp(-log_scale)
    return (0.5 * z**2 + log_scale + 0.5 * math.log(2 * math.pi)).mean()


X = torch.rand(160, 3) * 4 - 2
Y = torch.sin(X[:, 0]) + 0.5 * X[:, 1] + 0.7 * torch.randn(160)
loader = data.DataLoader(data.TensorDataset(X, Y), batch_size=32, shuffle=True)

model = HeteroscedasticRegressor(3, 32)
optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-3)
for epoch in range(2):
    running = 0.0
    for inputs, target in loader:
        optimizer.zero_grad()
        mean, log_scale = model(inputs)
        loss = gaussian_nll(mean, log_scale, target)
        loss.backward()
        optimizer.step()
        running += loss.item()
    print("epoch %d nll %.3f scale %.3f" % (epoch, running / len(loader), log_scale.exp().item()))
