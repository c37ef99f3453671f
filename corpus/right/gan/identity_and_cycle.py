"""Each translator has its own optimizer and steps on two losses: its identity loss, and the cycle loss of both."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(4)
to_b = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 3))
to_a = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 3))
opt_b = torch.optim.Adam(to_b.parameters(), lr=2e-3)
opt_a = torch.optim.Adam(to_a.parameters(), lr=2e-3)
for step in range(20):
    a = torch.randn(32, 3)
    b = torch.randn(32, 3).exp()
    opt_a.zero_grad()
    opt_b.zero_grad()
    (0.5 * F.l1_loss(to_b(b), b)).backward()
    (0.5 * F.l1_loss(to_a(a), a)).backward()
    cycle = F.l1_loss(to_a(to_b(a)), a) + F.mse_loss(to_b(to_a(b)), b)
    cycle.backward()
    opt_a.step()
    opt_b.step()
    if step % 10 == 9:
        print(f"step {step + 1} cycle {cycle.item():.3f}")
