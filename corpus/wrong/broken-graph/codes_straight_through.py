"""The loss of the codes uses the output of the straight-through estimator, which passes them by."""

import torch
from torch import nn
import torch.nn.functional as F


class Codes(nn.Module):
    def __init__(self, number, width):
        super().__init__()
        self.table = nn.Parameter(torch.randn(number, width))

    def forward(self, h):
        nearest = torch.cdist(h, self.table).argmin(1)
        chosen = self.table[nearest]
        return h + (chosen - h).detach()  # expect: broken-graph


torch.manual_seed(0)
encode, codes, decode = nn.Linear(12, 4), Codes(8, 4), nn.Linear(4, 12)
parameters = [*encode.parameters(), *codes.parameters(), *decode.parameters()]
adam = torch.optim.Adam(parameters, lr=1e-3)
for batch in torch.randn(300, 12).split(20):
    h = encode(batch)
    quantized = codes(h)
    loss = F.mse_loss(decode(quantized), batch) + F.mse_loss(quantized, h.detach())
    adam.zero_grad()
    loss.backward()
    adam.step()
