"""A module has no requires_grad: the backbone is trained with the head."""

import torch
import torch.nn.functional as F
from torch import nn


class Classifier(nn.Module):
    def __init__(self, backbone, classes):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(32, classes)

    def forward(self, x):
        return self.head(self.backbone(x))


torch.manual_seed(21)
backbone = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
model = Classifier(backbone, 4)
model.backbone.requires_grad = False  # expect: frozen-state-drift
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for step in range(10):
    x, y = torch.randn(16, 12), torch.randint(0, 4, (16,))
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
print(loss.item())
