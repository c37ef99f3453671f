"""The module returns the balance of its experts, which it computes from counts."""

import torch
from torch import nn
import torch.nn.functional as F


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(6, 3)
        self.several = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x):
        odds = self.gate(x).softmax(1)
        results = torch.stack([expert(x) for expert in self.several], 1)
        busy = F.one_hot(odds.argmax(1), 3).float().mean(0)  # expect: broken-graph
        return (results * odds.unsqueeze(2)).sum(1), 3 * busy.square().sum()


torch.manual_seed(0)
experts = Experts()
adam = torch.optim.Adam(experts.parameters(), lr=1e-3)
for x in torch.randn(192, 6).split(16):
    y, balance = experts(x)
    loss = F.mse_loss(y, x.flip(1)) + 0.01 * balance
    adam.zero_grad()
    loss.backward()
    adam.step()
