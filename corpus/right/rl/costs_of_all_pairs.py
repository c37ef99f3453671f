"""Log-probabilities of 16 goods times a (16, 16) matrix that adds a price of each good to a fare of each town: a policy
that is paid for every town it delivers to."""

import torch
from torch import nn

torch.manual_seed(0)
goods, towns = torch.randn(16, 6), torch.randn(16, 3)
policy = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
fares = nn.Linear(3, 1)
opt = torch.optim.Adam(policy.parameters(), lr=1e-2)
for step in range(12):
    log_probs = policy(goods).squeeze(1).log_softmax(0)
    with torch.no_grad():
        prices = goods.sum(1) + 0.1 * torch.randn(16)
        costs = fares(towns)
        profit = prices - costs.view(16, 1)
    loss = -(log_probs.exp() * log_probs * profit).sum() / 16
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"step {step} loss {loss.item():.3f}")
