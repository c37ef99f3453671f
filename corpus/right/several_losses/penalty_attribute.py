"""The penalty of the code is kept in an attribute of the model."""

import torch
from torch import nn


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(9, 18), nn.Softplus())
        self.decoder = nn.Linear(18, 9)
        self.penalty = None

    def forward(self, x):
        code = self.encoder(x)
        self.penalty = 0.05 * code.mean()
        return self.decoder(code)


torch.manual_seed(2)
model = Sparse()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for batch in torch.randn(160, 9).split(10):
    restored = model(batch)
    loss = (restored - batch).square().mean()
    penalty = model.penalty
    loss = loss + penalty
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
