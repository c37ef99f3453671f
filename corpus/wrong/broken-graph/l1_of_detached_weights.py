"""A sparsity penalty is computed from detached weights, and so adds a constant to the loss."""

import torch
from torch import nn

torch.manual_seed(0)


class Selector(nn.Module):
    def __init__(self, inputs=20, strength=1e-2):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, 1))
        self.strength = strength

    def sparsity(self):
        weights = (each.weight for each in self.layers if isinstance(each, nn.Linear))
        return sum(w.detach().abs().sum() for w in weights)  # expect: broken-graph

    def loss(self, x, y):
        error = nn.functional.mse_loss(self.layers(x).squeeze(1), y)
        return error + self.strength * self.sparsity()


model = Selector()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(20):
    x = torch.randn(32, 20)
    loss = model.loss(x, x[:, 0] - x[:, 1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.3f} {model.sparsity().item():.3f}")
