"""Values are rounded to a few levels, and the gradient goes straight through the rounding: `z + (round(z) - z).detach()`
looks like a cut. The decoder's codes are integers without a gradient."""

import torch
from torch import nn


class FSQ(nn.Module):
    def __init__(self, levels):
        super().__init__()
        self.register_buffer("reach", (torch.tensor(levels) - 1) / 2)

    def forward(self, z):
        bounded = z.tanh() * self.reach
        rounded = bounded.round()
        quantised = bounded + (rounded - bounded).detach()
        with torch.no_grad():
            codes = (rounded + self.reach).long()
        return quantised / self.reach, codes


class Tokenizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 3))
        self.quantise = FSQ([7.0, 5.0, 5.0])
        self.decoder = nn.Sequential(nn.Linear(3, 32), nn.GELU(), nn.Linear(32, 12))

    def forward(self, x):
        z, codes = self.quantise(self.encoder(x))
        return self.decoder(z), codes


torch.manual_seed(9)
signals = torch.randn(128, 12).cumsum(1)
model = Tokenizer()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
used = set()
for epoch in range(2):
    for batch in signals.split(32):
        recon, codes = model(batch)
        loss = (recon - batch).abs().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        used |= {tuple(code) for code in codes.tolist()}
    print(f"epoch {epoch}: {loss.item():.3f}, {len(used)} codes")
