"""Half of the sum of two terms, and half for each of two micro-batches: only the second 2 is the window's."""

import torch
from torch import nn

torch.manual_seed(0)
G = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
D = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
opt_g, opt_d = torch.optim.Adam(G.parameters(), lr=2e-4), torch.optim.Adam(D.parameters(), lr=2e-4)
bce, accumulate = nn.BCEWithLogitsLoss(), 2
for step in range(20):
    last = (step + 1) % accumulate == 0
    real, ones, zeros = torch.randn(16, 8), torch.ones(16, 1), torch.zeros(16, 1)

    D.requires_grad_(False)
    g_loss = bce(D(G(torch.randn(16, 4))), ones)
    (g_loss / accumulate).backward()
    if last:
        opt_g.step()
        opt_g.zero_grad()
    D.requires_grad_(True)

    with torch.no_grad():
        fake = G(torch.randn(16, 4))
    d_loss = (bce(D(real), ones) + bce(D(fake), zeros)) / 2
    (d_loss / accumulate).backward()
    if last:
        opt_d.step()
        opt_d.zero_grad()
print(g_loss.item(), d_loss.item())
