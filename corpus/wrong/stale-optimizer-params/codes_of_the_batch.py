"""Each batch's latent codes are a new tensor, and the optimizer goes on holding the one of before the loop. The decoder
learns; the codes stay as they were drawn."""

import torch
from sklearn.datasets import load_iris
from torch import nn

torch.manual_seed(7)
data = torch.tensor(load_iris().data, dtype=torch.float32)
data = (data - data.mean(0)) / data.std(0)
latents = 0.1 * torch.randn(len(data), 2)

decoder = nn.Sequential(nn.Linear(2, 16), nn.GELU(), nn.Linear(16, 4))
codes = latents[:25].clone().requires_grad_()
optimizer = torch.optim.Adam([{"params": decoder.parameters(), "lr": 1e-2}, {"params": [codes], "lr": 5e-2}])

for epoch in range(3):
    total = 0.0
    for rows in torch.randperm(len(data)).split(25):
        codes = latents[rows].clone().requires_grad_()  # expect: stale-optimizer-params
        loss = (decoder(codes) - data[rows]).pow(2).mean() + 1e-3 * codes.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        latents[rows] = codes.detach()
        total += loss.item()
    print(f"epoch {epoch} loss {total / 6:.4f} spread of the codes {latents.std().item():.4f}")
