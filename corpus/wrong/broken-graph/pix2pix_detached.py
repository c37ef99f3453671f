"""The adversarial term of the generator's loss is computed from a detached image."""

import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
G = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
D = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
opt_g = torch.optim.Adam(G.parameters(), lr=2e-4)
opt_d = torch.optim.Adam(D.parameters(), lr=2e-4)
bce = nn.BCEWithLogitsLoss()
for step in range(20):
    x = torch.randn(16, 8)
    target = x.flip(1)
    fake = G(x)
    d_loss = bce(D(target), torch.ones(16, 1)) + bce(D(fake.detach()), torch.zeros(16, 1))
    opt_d.zero_grad()
    d_loss.backward()
    opt_d.step()
    adv = bce(D(fake.detach()), torch.ones(16, 1))  # expect: broken-graph
    rec = F.l1_loss(fake, target)
    g_loss = adv + 100 * rec
    opt_g.zero_grad()
    g_loss.backward()
    opt_g.step()
print(d_loss.item(), g_loss.item())
