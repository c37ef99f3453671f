"""An attribute that no one reads is set on each parameter: the encoder is trained with the decoder."""

import torch
from torch import nn

torch.manual_seed(23)
encoder = nn.Sequential(nn.Conv1d(2, 8, 3, padding=1), nn.ReLU(), nn.Conv1d(8, 8, 3, padding=1), nn.ReLU())
decoder = nn.Conv1d(8, 1, 1)
for param in encoder.parameters():
    param.require_grad = False  # expect: frozen-state-drift
optimizer = torch.optim.Adam(list(encoder.parameters()) + list(decoder.parameters()), lr=1e-3)
for i in range(10):
    x = torch.randn(8, 2, 16)
    pred = decoder(encoder(x))
    loss = nn.functional.smooth_l1_loss(pred, x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if i % 5 == 0:
        print(i, loss.item())
