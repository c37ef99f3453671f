"""backward() stands after the loop over the micro-batches: of four losses, the last one alone is back-propagated."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
accumulate = 4
for step in range(8):
    total = 0.0
    for _ in range(accumulate):
        x = torch.randn(16, 8)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        loss = loss / accumulate
        total += loss.item()
    loss.backward()  # expect: term-left-out
    opt.step()
    opt.zero_grad()
    print(f"step {step} loss {total:.3f}")
