"""Penalties that compare a parameter with another form of itself and are right: with a copy without its graph, with
its own transpose, with its neighbours, and with the weights of a second network that learns, too."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Tanh(), nn.Linear(8, 1))
twin = nn.Linear(8, 8, bias=False)
optimizer = torch.optim.Adam([*model.parameters(), *twin.parameters()], lr=5e-3)
start = [p.detach().clone() for p in model.parameters()]
for step in range(12):
    x = torch.randn(32, 8)
    w = model[0].weight
    loss = nn.functional.mse_loss(model(x), x[:, :1]) + nn.functional.mse_loss(twin(x), x.flip(1))
    near = sum((p - s).square().sum() for p, s in zip(model.parameters(), start))
    symmetric = nn.functional.mse_loss(w, w.t())
    smooth = (w[1:] - w[:-1]).abs().mean() + (w - w.roll(1, 0)).square().mean()
    alike = (w.clone() - twin.weight.clone()).square().mean()
    optimizer.zero_grad()
    (loss + 0.1 * near + 0.1 * symmetric + 0.01 * smooth + 0.1 * alike).backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")
