"""Three weights that are 0 in this short run on purpose: an option, a staircase, and a term of the second half."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(8)
SPARSITY = 0.0
EPOCHS, FIRST_STAIR, SECOND_HALF = 5, 10, 40

model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 12))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
data = torch.randn(160, 12) @ torch.randn(12, 12)
half = 24 // 2
for epoch in range(EPOCHS):
    smoothness = min(1.0, 0.25 * (epoch // FIRST_STAIR))
    contrast = float(epoch >= SECOND_HALF)
    for batch in data.split(32):
        hidden = model[1](model[0](batch))
        rebuilt = model[2](hidden)
        loss = F.mse_loss(rebuilt, batch)
        loss = loss + SPARSITY * hidden.mean()
        loss = loss + smoothness * (hidden[:, :half] - hidden[:, half:]).square().mean()
        loss = loss + contrast * rebuilt.abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch // 1 + 1}, loss {loss.item():.4f}")
