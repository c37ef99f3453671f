"""A unit-norm parameter of a module is replaced by a new Parameter after each step."""

import torch
from torch import nn


class Direction(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.axis = nn.Parameter(torch.randn(dim))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.scale * (x @ self.axis)


def project(model):
    model.axis = nn.Parameter(
        model.axis.detach() / model.axis.detach().norm()
    )  # expect: stale-optimizer-params


torch.manual_seed(1)
model = Direction(4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(30):
    x = torch.randn(32, 4)
    loss = (model(x) - 2 * x[:, 0]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    project(model)
print(f"{loss.item():.4f}")
