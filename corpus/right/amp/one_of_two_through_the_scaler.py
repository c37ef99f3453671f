"""Only the large network is scaled; the small one has an optimizer of its own, which steps by itself in between."""

import torch
from torch import nn

torch.manual_seed(17)
large = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
small = nn.Linear(8, 1)
optimizer, plain = torch.optim.Adam(large.parameters(), lr=1e-3), torch.optim.SGD(small.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
for step in range(16):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.mse_loss(large(x).float(), x.roll(1, 1))
    scaler.scale(loss).backward()
    plain.zero_grad()
    error = nn.functional.mse_loss(small(x), x.square().sum(1, keepdim=True))
    error.backward()
    plain.step()
    scaler.step(optimizer)
    scaler.update()
    if step % 8 == 7:
        print(f"step {step + 1} loss {loss.item():.3f} error {error.item():.3f}")
