"""Class prototypes and an encoder are pulled towards each other, each with its own weight, and a decoder reads the
prototypes. The labels choose them, so the decoder's loss is none of the encoder's."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(8)
encoder, prototypes = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 4)), nn.Embedding(3, 4)
decoder = nn.Linear(4, 10)
parameters = [p for part in (encoder, prototypes, decoder) for p in part.parameters()]
optimizer = torch.optim.Adam(parameters, lr=3e-3)
for step in range(12):
    labels = torch.randint(3, (24,))
    x = torch.randn(24, 10) + labels[:, None]
    z, own = encoder(x), prototypes(labels)
    pulled = F.mse_loss(own, z.detach()) + 0.25 * F.mse_loss(z, own.detach())
    loss = F.mse_loss(decoder(own), x) + pulled
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} {loss.item():.4f}")
