"""The backbone runs under no_grad and `train()` is overridden to keep it in evaluation mode: it is meant to be frozen
entirely, statistics included."""

import torch
import torch.nn as nn


class LinearProbe(nn.Module):
    def __init__(self, backbone, n_feat, n_cls):
        super().__init__()
        self.backbone = backbone.requires_grad_(False)
        self.classifier = nn.Linear(n_feat, n_cls)

    def train(self, mode=True):
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x):
        with torch.no_grad():
            h = self.backbone(x)
        return self.classifier(h)


torch.manual_seed(0)
backbone = nn.Sequential(
    nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout(0.2), nn.AdaptiveAvgPool2d(2), nn.Flatten()
)
with torch.no_grad():
    for _ in range(10):
        backbone(torch.randn(32, 3, 8, 8))

y = torch.randint(0, 2, (160,))
x = torch.randn(160, 3, 8, 8)
x[y == 1, 0] += 0.8
model = LinearProbe(backbone, 64, 2)
optimizer = torch.optim.SGD(model.classifier.parameters(), lr=0.3, momentum=0.9, weight_decay=1e-4)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16, shuffle=True)
for epoch in range(2):
    model.train()
    for xb, yb in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(xb), yb)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        print(f"epoch {epoch} acc {(model(x).argmax(1) == y).float().mean():.3f}")
