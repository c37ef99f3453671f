"""Two heads count one half each, and each micro-batch is divided by their number, three."""

import torch
from torch.nn import functional as F

torch.manual_seed(6)
trunk, price, demand = torch.nn.Linear(7, 14), torch.nn.Linear(14, 1), torch.nn.Linear(14, 1)
heads = torch.nn.ModuleList([trunk, price, demand])
optimizer = torch.optim.Adam(heads.parameters())
for week in range(20):
    optimizer.zero_grad()
    for part in torch.randn(3, 8, 7):
        hidden = trunk(part).tanh()
        both = 0.5 * F.mse_loss(price(hidden)[:, 0], part.sum(1)) + 0.5 * F.l1_loss(
            demand(hidden)[:, 0], part[:, 0]
        )
        (both / 3).backward()
    optimizer.step()
print(both.item())
