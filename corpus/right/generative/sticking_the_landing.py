"""The posterior's parameters are detached in its log-probability, which the sample still connects to the graph."""

import torch
from torch import nn
from torch.distributions import Normal

torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4))
decoder = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 4))
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-2)
data = torch.randn(64, 4)
for step in range(8):
    mean, log_std = encoder(data).chunk(2, 1)
    z = mean + log_std.exp() * torch.randn_like(mean)
    log_q = Normal(mean.detach(), log_std.detach().exp()).log_prob(z).sum(1)
    log_prior = Normal(0.0, 1.0).log_prob(z).sum(1)
    log_likelihood = -0.5 * (data - decoder(z)).pow(2).sum(1)
    loss = -(log_likelihood + log_prior - log_q).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
