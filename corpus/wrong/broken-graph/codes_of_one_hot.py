"""The decoder gets the chosen codes themselves. Only the commitment trains the encoder."""

import torch
import torch.nn.functional as F
from torch import nn


class Quantizer(nn.Module):
    def __init__(self, number=16, width=6):
        super().__init__()
        self.codes = nn.Parameter(0.5 * torch.randn(number, width))

    def forward(self, z):
        rows = z.permute(0, 2, 1).reshape(-1, z.shape[1])
        away = rows.pow(2).sum(1, keepdim=True) - 2 * rows @ self.codes.t() + self.codes.pow(2).sum(1)
        chosen = F.one_hot(away.argmin(1), len(self.codes)).float()
        return (chosen @ self.codes).view(len(z), z.shape[2], -1).permute(0, 2, 1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv1d(1, 12, 4, 2, 1), nn.ReLU(), nn.Conv1d(12, 6, 4, 2, 1))
        self.quantizer = Quantizer()
        self.decoder = nn.Sequential(
            nn.ConvTranspose1d(6, 12, 4, 2, 1), nn.ReLU(), nn.ConvTranspose1d(12, 1, 4, 2, 1)
        )

    def forward(self, x):
        z = self.encoder(x)
        q = self.quantizer(z)
        return self.decoder(q), z, q


torch.manual_seed(4)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(12):
    x = torch.sin(torch.linspace(0, 6, 32) * (1 + torch.rand(24, 1, 1)))
    out, z, q = model(x)
    codebook = ((z.detach() - q) ** 2).mean()  # expect: broken-graph
    commitment = ((z - q.detach()) ** 2).mean()
    loss = F.mse_loss(out, x) + codebook + 0.25 * commitment
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} reconstruction {F.mse_loss(out, x).item():.4f} commitment {commitment.item():.4f}")
