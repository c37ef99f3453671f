"""Layers that stay random on purpose, in a model whose other frozen weights are loaded, and a head that was trained."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Kernel(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.body.load_state_dict(body.state_dict())
        self.fourier = nn.Linear(16, 64)
        for part in (self.body, self.fourier):
            for parameter in part.parameters():
                parameter.requires_grad_(False)
        self.out = nn.Linear(64, 3)

    def forward(self, x):
        return self.out(torch.cos(self.fourier(self.body(x).relu())))


class Adapted(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.lora_a = nn.Parameter(torch.randn(2, layer.in_features) / 4)
        self.lora_b = nn.Parameter(torch.zeros(layer.out_features, 2))

    def forward(self, x):
        return self.layer(x) + x @ self.lora_a.T @ self.lora_b.T


def fit(model, y):
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(12):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


x = torch.randn(96, 8)
y = x[:, :3].argmax(1)
network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
fit(network, y)
fit(Kernel(network[0]), y)
network[0] = Adapted(network[0])
for name, parameter in network.named_parameters():
    parameter.requires_grad = "lora_" in name
fit(network, (y + 1) % 3)
