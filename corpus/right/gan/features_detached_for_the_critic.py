"""The features of the fake images are detached after the generator's terms used them, for a log."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(2)
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6))
features, score = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2)), nn.Linear(16, 1)
opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3)
opt_d = torch.optim.Adam([*features.parameters(), *score.parameters()], lr=1e-3)

for step in range(15):
    real, fake = torch.randn(32, 6) + 1, generator(torch.randn(32, 4))
    of_real, of_fake = features(real), features(fake)
    matching = (of_fake.mean(0) - of_real.detach().mean(0)).abs().mean()
    loss_g = F.softplus(-score(of_fake)).mean() + 10.0 * matching
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()

    of_fake, of_real = of_fake.detach(), of_real.detach()
    fake = fake.detach()
    loss_d = F.softplus(-score(features(real))).mean() + F.softplus(score(features(fake))).mean()
    opt_d.zero_grad()
    loss_d.backward()
    opt_d.step()
print(loss_g.item(), (of_fake - of_real).abs().mean().item())
