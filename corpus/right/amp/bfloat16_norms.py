"""Pure bfloat16 with a rate that moves the weights. Only the layer norms keep their ones, next to which bfloat16 is
coarse."""

import torch
from torch import nn

torch.manual_seed(4)
x, y = torch.randn(64, 16).bfloat16(), torch.randint(4, (64,))
model = nn.Sequential(nn.Linear(16, 48), nn.LayerNorm(48), nn.GELU(), nn.Linear(48, 4)).to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=24)
for _ in range(3):
    for part in torch.randperm(64).split(8):
        loss = nn.functional.cross_entropy(model(x[part]).float(), y[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
print(loss.item())
