"""A decoder that is to stay as it is runs under ``no_grad``: its adapter, before it, is trained by nothing.

``requires_grad_(False)`` on the decoder would keep it and let the gradient through. Only the bias that is added
behind the decoder learns.
"""

import torch
from torch import nn


class Adapted(nn.Module):
    def __init__(self, decoder):
        super().__init__()
        self.adapter = nn.Linear(6, 6)
        self.decoder = decoder
        self.offset = nn.Parameter(torch.zeros(10))

    @torch.no_grad()  # expect: broken-graph
    def decode(self, code):
        return self.decoder(code)

    def forward(self, code):
        return self.decode(code + self.adapter(code)) + self.offset


torch.manual_seed(2)
decoder = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 10))
model = Adapted(decoder)
optimizer = torch.optim.AdamW([*model.adapter.parameters(), model.offset], lr=1e-2)

codes = torch.randn(60, 6)
with torch.no_grad():
    wanted = decoder(codes @ torch.linalg.qr(torch.randn(6, 6)).Q) + 0.3

for epoch in range(2):
    for some in torch.arange(60).split(20):
        loss = (model(codes[some]) - wanted[some]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
