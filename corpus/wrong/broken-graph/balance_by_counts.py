"""The balance term counts which experts were chosen: counts have no gradient, so that nothing keeps the experts busy."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
router = nn.Linear(8, 4)
experts = nn.ModuleList([nn.Linear(8, 1) for _ in range(4)])
optimizer = torch.optim.Adam([*router.parameters(), *experts.parameters()], lr=1e-2)
for step in range(12):
    x = torch.randn(64, 8)
    y = x[:, :1] * x[:, 1:2].sign()
    scores = router(x)
    best, chosen = scores.topk(2, dim=1)
    weights = best.softmax(1)
    outputs = torch.stack([expert(x) for expert in experts], 1).squeeze(2)
    out = (weights * outputs.gather(1, chosen)).sum(1, keepdim=True)
    load = F.one_hot(chosen, 4).float().mean((0, 1))  # expect: broken-graph
    balance = 4 * load.square().sum()
    loss = F.mse_loss(out, y) + 0.05 * balance
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 4 == 3:
        print(f"{step + 1} {loss.item():.4f} balance {balance.item():.3f}")
