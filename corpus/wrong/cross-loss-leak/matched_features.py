"""The discriminator's loss also reaches the generator, for more steps than the checker watches closely."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(5)
maker = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 6))
judge = nn.Sequential(nn.Linear(6, 24), nn.LeakyReLU(0.2), nn.Linear(24, 1))
opt_maker = torch.optim.Adam(maker.parameters(), lr=2e-3)
opt_judge = torch.optim.Adam(judge.parameters(), lr=2e-3)
for step in range(200):
    true = torch.randn(32, 6) + 1
    opt_maker.zero_grad()
    opt_judge.zero_grad()
    made = maker(torch.randn(32, 4))
    loss_judge = F.softplus(judge(made)).mean() + F.softplus(-judge(true)).mean()  # expect: cross-loss-leak
    loss_judge.backward(retain_graph=True)
    opt_judge.step()
    matched = F.mse_loss(made.mean(0), true.mean(0))
    (F.softplus(-judge(made)).mean() + matched).backward()
    opt_maker.step()
print(f"judge {loss_judge.item():.3f}, matched {matched.item():.3f}")
