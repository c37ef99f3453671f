"""Looks like gradients cleared before use and parameters changed in place: SAM climbs along the first
gradient, takes a second one there, walks back, and steps."""

import torch
import torch.nn.functional as F
from torch import nn


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base_optimizer, rho=0.05, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        norms = [p.grad.norm() for g in self.param_groups for p in g["params"] if p.grad is not None]
        grad_norm = torch.stack(norms).norm()
        for group in self.param_groups:
            scale = group["rho"] / (grad_norm + 1e-12)
            for p in group["params"]:
                if p.grad is None:
                    continue
                self.state[p]["old_p"] = p.data.clone()
                p.add_(p.grad * scale)
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()


torch.manual_seed(0)
x = torch.randn(120, 2)
y = ((x[:, 0] * 2).sin() > x[:, 1]).long()
model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)

for epoch in range(3):
    for rows in torch.randperm(120).split(30):
        loss = F.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        optimizer.first_step(zero_grad=True)
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.second_step(zero_grad=True)
    print(f"epoch {epoch} loss {loss.item():.4f}")
