"""The latent code is repeated over time and concatenated with the inputs, but drawn with sample()."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal, kl_divergence


class Sequences(nn.Module):
    def __init__(self):
        super().__init__()
        self.reader = nn.GRU(3, 12, batch_first=True)
        self.stats = nn.Linear(12, 8)
        self.writer = nn.Sequential(nn.Linear(4 + 3, 16), nn.Tanh(), nn.Linear(16, 3))

    def forward(self, series):
        mean, raw = self.stats(self.reader(series)[1][0]).chunk(2, dim=-1)
        posterior = Normal(mean, F.softplus(raw) + 1e-3)
        code = posterior.sample()  # expect: broken-graph
        code = code.unsqueeze(1).expand(-1, series.shape[1] - 1, -1)
        return self.writer(torch.cat([series[:, :-1], code], dim=-1)), posterior


torch.manual_seed(0)
model = Sequences()
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(12):
    series = torch.randn(16, 6, 3).cumsum(1)
    predicted, posterior = model(series)
    kl = kl_divergence(posterior, Normal(0.0, 1.0)).sum(-1).mean()
    loss = F.mse_loss(predicted, series[:, 1:]) + 0.1 * kl
    opt.zero_grad()
    loss.backward()
    opt.step()
print(f"loss {loss.item():.3f}")
