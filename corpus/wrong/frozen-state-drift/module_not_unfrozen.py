"""The second phase should train the features too, but it sets requires_grad of the module, which unfreezes nothing."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        self.classifier = nn.Linear(16, 4)

    def forward(self, x):
        return self.classifier(self.features(x))


def fit(model, lr):
    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=lr)
    for _ in range(12):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


x = torch.randn(128, 12)
y = x[:, :4].argmax(1)
model = Network()
for parameter in model.features.parameters():
    parameter.requires_grad = False
fit(model, lr=1e-2)
model.features.requires_grad = True  # expect: frozen-state-drift
fit(model, lr=1e-3)
