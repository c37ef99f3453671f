"""Autoencoder with a sparsity penalty of its own backward call: the penalty is not divided, the error is."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
MICRO_BATCHES = 4
encoder, decoder = nn.Sequential(nn.Linear(20, 12), nn.ReLU()), nn.Linear(12, 20)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
data = torch.randn(256, 20)

for epoch in range(3):
    for number, rows in enumerate(data.split(16), start=1):
        codes = encoder(rows)
        error = F.mse_loss(decoder(codes), rows) / MICRO_BATCHES
        error.backward(retain_graph=True)
        sparsity = codes.abs().mean()
        (0.2 * sparsity).backward()  # expect: accumulation-scaling
        if number % MICRO_BATCHES == 0:
            optimizer.step()
            optimizer.zero_grad()
