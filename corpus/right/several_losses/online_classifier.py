"""A trained copy and its average: the online classifier belongs to the online network, and its loss trains both."""

import copy

import torch
from torch import nn

torch.manual_seed(15)
online = nn.ModuleDict(
    {"encoder": nn.Sequential(nn.Linear(10, 24), nn.Tanh()), "classifier": nn.Linear(24, 3)}
)
online_encoder, online_classifier = online["encoder"], online["classifier"]
target_encoder = copy.deepcopy(online_encoder).requires_grad_(False)
trunk = torch.optim.Adam(online_encoder.parameters(), lr=3e-3)
head = torch.optim.Adam(online_classifier.parameters(), lr=1e-2)
x = torch.randn(240, 10)
y = x[:, :3].argmax(1)
for epoch in range(2):
    for i in torch.randperm(240).split(24):
        h = online_encoder(x[i] + 0.1 * torch.randn(len(i), 10))
        with torch.no_grad():
            goal = target_encoder(x[i])
        trunk.zero_grad()
        head.zero_grad()
        agreement = (h - goal).square().mean()
        agreement.backward(retain_graph=True)
        loss = nn.functional.cross_entropy(online_classifier(h), y[i])
        loss.backward()
        trunk.step()
        head.step()
        with torch.no_grad():
            for p, q in zip(target_encoder.parameters(), online_encoder.parameters()):
                p.lerp_(q, 0.05)
    print(f"{agreement.item():.4f} {loss.item():.4f}")
