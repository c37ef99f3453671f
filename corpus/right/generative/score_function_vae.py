"""The latent is drawn without its graph: the score function's gradient trains the encoder."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Independent, Normal


class Model(nn.Module):
    def __init__(self, features=16, latents=3):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(features, 32), nn.ReLU(), nn.Linear(32, 2 * latents))
        self.decode = nn.Sequential(nn.Linear(latents, 32), nn.ReLU(), nn.Linear(32, features))
        self.register_buffer("zero", torch.zeros(latents))

    def losses(self, x, baseline):
        mean, raw = self.encode(x).chunk(2, -1)
        posterior = Independent(Normal(mean, F.softplus(raw) + 1e-3), 1)
        z = posterior.sample()
        prior = Independent(Normal(self.zero, torch.ones_like(self.zero)), 1).log_prob(z)
        evidence = Independent(Normal(self.decode(z), 1.0), 1).log_prob(x)
        score = posterior.log_prob(z)
        signal = (evidence + prior - score).detach()
        return -evidence.mean() - ((signal - baseline) * score).mean(), signal.mean().item()


torch.manual_seed(0)
model, baseline = Model(), 0.0
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(10):
    loss, signal = model.losses(torch.randn(32, 16), baseline)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    baseline = 0.9 * baseline + 0.1 * signal
print(loss.item(), baseline)
