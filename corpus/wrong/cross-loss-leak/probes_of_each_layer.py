"""A linear probe on each layer of a regressor. The probes' own loss also trains the layers."""

import torch
from torch import nn

torch.manual_seed(11)
layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])
head = nn.Linear(8, 1)
probes = nn.ModuleList([nn.Linear(8, 2) for _ in range(2)])
optimizer = torch.optim.Adam([*layers.parameters(), *head.parameters()], lr=1e-2)
probe_optimizer = torch.optim.Adam(probes.parameters(), lr=1e-2)
criterion = nn.CrossEntropyLoss()

for step in range(15):
    x = torch.randn(32, 8)
    kinds = (x[:, 0] * x[:, 1] > 0).long()
    hidden, features = [], x
    for layer in layers:
        features = torch.tanh(layer(features))
        hidden.append(features)
    optimizer.zero_grad()
    probe_optimizer.zero_grad()
    nn.functional.mse_loss(head(features).squeeze(1), x.sum(1)).backward(retain_graph=True)
    losses = [criterion(probe(each), kinds) for probe, each in zip(probes, hidden)]  # expect: cross-loss-leak
    sum(losses).backward()
    optimizer.step()
    probe_optimizer.step()
