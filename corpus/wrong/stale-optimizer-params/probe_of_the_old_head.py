"""The list for the probe's optimizer is built before the new head takes the old one's place, so the head
stays random."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(9)


class Backbone(nn.Module):
    def __init__(self, dim=6):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 24), nn.ReLU())
        self.fc = nn.Linear(24, dim)

    def forward(self, x):
        return self.fc(self.body(x))


def pretrain(backbone, x, steps=8):
    optimizer = torch.optim.SGD(backbone.parameters(), lr=0.05, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.mse_loss(backbone(x), torch.cat([x, x[:, :1] * x[:, 1:2]], 1))
        loss.backward()
        optimizer.step()
    return loss.item()


def linear_probe(backbone, x, y, epochs=8):
    for name, param in backbone.named_parameters():
        if name not in ["fc.weight", "fc.bias"]:
            param.requires_grad = False
    parameters = list(filter(lambda p: p.requires_grad, backbone.parameters()))
    assert len(parameters) == 2
    optimizer = torch.optim.SGD(parameters, lr=0.5, momentum=0.9)
    backbone.fc = nn.Linear(24, 3)  # expect: stale-optimizer-params
    backbone.fc.weight.data.normal_(mean=0.0, std=0.01)
    backbone.fc.bias.data.zero_()
    for epoch in range(epochs):
        loss = F.cross_entropy(backbone(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch % 4 == 3:
            print(f"epoch {epoch} loss {loss.item():.4f}")


x = torch.randn(96, 5)
backbone = Backbone()
print(f"pretraining {pretrain(backbone, x):.4f}")
linear_probe(backbone, x, x[:, :3].argmax(1))
