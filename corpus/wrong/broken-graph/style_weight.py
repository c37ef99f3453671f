"""A style term whose features of both images are computed under no_grad; its weight is an attribute `weight`."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class StyleTerm(nn.Module):
    def __init__(self, features, weight=10.0):
        super().__init__()
        self.features = features.requires_grad_(False)
        self.weight = weight

    def gram(self, images):
        with torch.no_grad():  # expect: broken-graph
            maps = self.features(images).flatten(2)
            return maps @ maps.transpose(1, 2) / maps.shape[2]

    def forward(self, made, wanted):
        return F.l1_loss(made, wanted) + self.weight * F.mse_loss(self.gram(made), self.gram(wanted))


criterion = StyleTerm(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU()))
painter = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))
optimizer = torch.optim.Adam(painter.parameters(), lr=1e-2)
for step in range(15):
    image = torch.rand(4, 1, 8, 8)
    loss = criterion(painter(image), image.flip(3))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.4f}")
