"""Looks like gradients too small for float16: targets of a ten-thousandth, but a gradient scaler scales the loss, and
a layer of zeros holds the first gradients back."""

import torch
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(128, 6)
targets = 1e-3 * torch.tanh(inputs @ torch.randn(6, 1))
model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 1))
nn.init.zeros_(model[2].weight)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
for epoch in range(3):
    for x, y in zip(inputs.split(32), targets.split(32)):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x).float(), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    print(epoch, f"{loss.item():.3e}")
