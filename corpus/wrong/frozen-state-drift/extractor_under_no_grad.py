"""model.train() puts an extractor that runs under no_grad into training mode, too."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        with torch.no_grad():
            f = self.features(x)
        return self.head(f)


torch.manual_seed(0)
model = Model()
opt = torch.optim.Adam(model.head.parameters(), 1e-3)
for epoch in range(2):
    model.train()  # expect: frozen-state-drift
    for _ in range(6):
        x, y = torch.randn(4, 3, 8, 8), torch.randint(4, (4,))
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
