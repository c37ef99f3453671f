"""Random network distillation: the target has the predictor's shape, is not in the optimizer, and is to
stay random."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(18)


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 24), nn.Linear(24, 8)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x)))


predictor, target = Features(), Features()
optimizer = torch.optim.Adam(predictor.parameters(), lr=1e-3)
for _ in range(16):
    state = torch.randn(32, 4)
    with torch.no_grad():
        goal = target(state)
    bonus = (predictor(state) - goal).square().mean(1)
    optimizer.zero_grad()
    bonus.mean().backward()
    optimizer.step()
print(f"bonus {bonus.mean().item():.4f}")
