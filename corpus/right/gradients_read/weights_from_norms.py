"""The first backward of each task only measures a gradient norm, from which the weights of the tasks are computed."""

import torch
import torch.nn.functional as F
from torch import nn


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.kind, self.size = nn.Linear(16, 4), nn.Linear(16, 1)

    def forward(self, x):
        h = self.body(x)
        return self.kind(h), self.size(h).squeeze(1)


def losses_of(net, x, kind, size):
    kinds, sizes = net(x)
    return {"kind": F.cross_entropy(kinds, kind), "size": F.smooth_l1_loss(sizes, size)}


def norm_of(parameters):
    return torch.stack([p.grad.norm() for p in parameters if p.grad is not None]).norm().item()


def balance(net, optimizer, batch):
    norms = {}
    for task in ("kind", "size"):
        losses_of(net, *batch)[task].backward()
        norms[task] = norm_of(net.body.parameters())
        optimizer.zero_grad()
    mean = sum(norms.values()) / len(norms)
    return {task: mean / (norm + 1e-8) for task, norm in norms.items()}


torch.manual_seed(3)
net = TwoHeads()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
for step in range(12):
    x = torch.randn(24, 8)
    batch = (x, x[:, :4].argmax(1), 30 * x[:, 0])
    weights = balance(net, optimizer, batch)
    losses = losses_of(net, *batch)
    total = sum(weights[task] * losses[task] for task in losses)
    total.backward()
    optimizer.step()
    optimizer.zero_grad()
print({task: round(loss.item(), 4) for task, loss in losses.items()}, f"{weights['size']:.3f}")
