"""The output of the auxiliary head is unpacked and never read."""

import torch
from torch import nn
import torch.nn.functional as F


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(12, 24)
        self.main = nn.Linear(24, 5)
        self.aux = nn.Linear(24, 2)

    def forward(self, x):
        h = F.relu(self.trunk(x))
        return self.main(h), self.aux(h)


torch.manual_seed(0)
model = TwoHeads()
opt = torch.optim.Adam(model.parameters())
for step in range(15):
    x = torch.randn(16, 12)
    y, side = torch.randint(5, (16,)), torch.randint(2, (16,))
    logits, aux_logits = model(x)
    loss = F.cross_entropy(logits, y)  # expect: unreached-parameter
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 5 == 0:
        print(step, loss.item())
