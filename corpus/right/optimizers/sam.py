"""The weights are moved by hand uphill and back, and each step has two backwards with a clearing in between (SAM)."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base_optimizer, rho=0.05, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self):
        norm = torch.stack([p.grad.norm() for g in self.param_groups for p in g["params"]]).norm()
        for group in self.param_groups:
            for p in group["params"]:
                e_w = p.grad * (group["rho"] / (norm + 1e-12))
                p.add_(e_w)
                self.state[p]["e_w"] = e_w
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(self.state[p]["e_w"])
        self.base_optimizer.step()
        self.zero_grad()


torch.manual_seed(0)
x = torch.randn(240, 1, 6, 6)
y = (x[:, 0, :3].mean((1, 2)) > x[:, 0, 3:].mean((1, 2))).long()
net = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(96, 2))
opt = SAM(net.parameters(), torch.optim.SGD, rho=0.05, lr=0.05, momentum=0.9)
for epoch in range(3):
    for idx in torch.randperm(240).split(30):
        loss = F.cross_entropy(net(x[idx]), y[idx])
        loss.backward()
        opt.first_step()
        F.cross_entropy(net(x[idx]), y[idx]).backward()
        opt.second_step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
