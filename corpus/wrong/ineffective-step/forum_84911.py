"""PyTorch forum 84911: all but the batch norms are frozen, and the optimizer is given the frozen head."""

import torch
from torch import nn

torch.manual_seed(0)
body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
model = nn.ModuleDict({"body": body, "head": nn.Linear(4 * 36, 3)})
for name, parameter in model.named_parameters():
    parameter.requires_grad = name.startswith("body.1.")
optimizer = torch.optim.SGD(model["head"].parameters(), lr=0.01)  # expect: ineffective-step
for _ in range(12):
    x, y = torch.randn(8, 1, 8, 8), torch.randint(3, (8,))
    loss = nn.functional.cross_entropy(model["head"](model["body"](x)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
