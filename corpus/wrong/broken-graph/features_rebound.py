"""The generator's feature matching compares features that were replaced by their data: the term is a constant."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(2)
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6))
features, score = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2)), nn.Linear(16, 1)
opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3)
opt_d = torch.optim.Adam([*features.parameters(), *score.parameters()], lr=1e-3)
critic = nn.ModuleList([features, score])

for step in range(15):
    real, fake = torch.randn(32, 6) + 1, generator(torch.randn(32, 4))
    critic.requires_grad_(True)
    loss_d = F.softplus(-score(features(real))).mean() + F.softplus(score(features(fake.detach()))).mean()
    opt_d.zero_grad()
    loss_d.backward()
    opt_d.step()

    critic.requires_grad_(False)
    of_fake = features(fake)
    adversarial = F.softplus(-score(of_fake)).mean()
    of_real = features(real)
    of_fake, of_real = of_fake.data, of_real.data  # expect: broken-graph
    matching = (of_fake.mean(0) - of_real.mean(0)).abs().mean()
    loss_g = adversarial + 10.0 * matching
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
print(loss_g.item())
