"""Both terms of a codebook's loss train the codes and the encoder alike, since neither side is detached."""

import torch
import torch.nn as nn

torch.manual_seed(7)
CODES, DIM = 8, 4


class Quantizer(nn.Module):
    def __init__(self, cost=0.25):
        super().__init__()
        self.codes = nn.Parameter(torch.randn(CODES, DIM))
        self.cost = cost

    def forward(self, z):
        q = self.codes[torch.cdist(z, self.codes).argmin(1)]
        toward_data = (q - z).pow(2).mean()
        commitment = ((z - q) ** 2).mean()  # expect: attached-target
        return z + (q - z).detach(), toward_data + self.cost * commitment


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, DIM))
        self.quantizer = Quantizer()
        self.decoder = nn.Linear(DIM, 10)

    def forward(self, x):
        q, loss = self.quantizer(self.encoder(x))
        return (self.decoder(q) - x).square().mean() + loss


model = Autoencoder()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
data = torch.randn(160, 3) @ torch.randn(3, 10)
for epoch in range(2):
    for x in data.split(16):
        loss = model(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
