"""Two passes of one network are subtracted, so the last bias cancels: its gradient is zero, and nothing is wrong."""

import torch
from torch import nn


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(15, 24), nn.ReLU(), nn.Linear(24, 4))

    def forward(self, a, b):
        return (self.embed(a) - self.embed(b)).square().sum(1)


def contrastive(distance, same, margin=1.0):
    return (same * distance + (1 - same) * torch.relu(margin - distance)).mean()


torch.manual_seed(4)
prototypes = torch.randn(3, 15)
model = Siamese()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(20):
    first, second = torch.randint(0, 3, (2, 32))
    noise = 0.3 * torch.randn(2, 32, 15)
    distance = model(prototypes[first] + noise[0], prototypes[second] + noise[1])
    loss = contrastive(distance, (first == second).float())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"contrastive loss {loss.item():.4f}")
