"""The whole loop runs under one autocast, which keeps the 16-bit casts of the weights until it ends: the loss never
changes."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
data = load_digits()
x = torch.tensor(data.data[:256], dtype=torch.float32) / 16
y = torch.tensor(data.target[:256])
model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

with torch.autocast("cpu", dtype=torch.bfloat16):  # expect: stale-values
    for epoch in range(3):
        for index in torch.randperm(256).split(32):
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(x[index]), y[index])
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")
