"""The model returns three losses, and two of them are added up: the encoder may drift away from the codes."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(12, 4), nn.Linear(4, 12)
        self.codes = nn.Parameter(torch.randn(8, 4))

    def losses(self, x):
        z = self.encoder(x)
        q = self.codes[torch.cdist(z, self.codes).argmin(1)]
        recon = self.decoder(z + (q - z).detach())
        return {
            "recon": F.mse_loss(recon, x),
            "codebook": F.mse_loss(q, z.detach()),
            "commitment": F.mse_loss(z, q.detach()),
        }


torch.manual_seed(0)
model = Model()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(10):
    losses = model.losses(torch.randn(32, 12))
    loss = losses["recon"] + losses["codebook"]  # expect: term-left-out
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, {k: round(v.item(), 3) for k, v in losses.items()})
