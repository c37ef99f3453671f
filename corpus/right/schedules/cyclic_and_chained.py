"""Looks like two schedulers that fight: CyclicLR moves the rate within an epoch in every step, and a second
optimizer has a schedule of its own, per epoch, chained of two."""

import torch
from torch import nn
from torch.optim import lr_scheduler

cfg = {
    "seed": 5,
    "epochs": 3,
    "batch": 20,
    "net": {"lr": 0.02, "max_lr": 0.1, "half": 3},
    "prior": {"lr": 0.05, "warm": 1, "gamma": 0.8},
}

torch.manual_seed(cfg["seed"])
x = torch.rand(120, 2) * 4 - 2
y = torch.stack([torch.sin(x[:, 0]), x[:, 1] ** 2], 1) + 0.1 * torch.randn(120, 2)

net = nn.Sequential(nn.Linear(2, 40), nn.Softplus(), nn.Linear(40, 2))
log_noise = nn.Parameter(torch.zeros(2))

net_opt = torch.optim.SGD(net.parameters(), lr=cfg["net"]["lr"], momentum=0.9)
net_sched = lr_scheduler.CyclicLR(
    net_opt, cfg["net"]["lr"], cfg["net"]["max_lr"], step_size_up=cfg["net"]["half"], cycle_momentum=True
)
noise_opt = torch.optim.Adam([log_noise], lr=cfg["prior"]["lr"])
noise_sched = lr_scheduler.SequentialLR(
    noise_opt,
    [
        lr_scheduler.LinearLR(noise_opt, 0.1, 1.0, total_iters=cfg["prior"]["warm"]),
        lr_scheduler.ExponentialLR(noise_opt, cfg["prior"]["gamma"]),
    ],
    milestones=[cfg["prior"]["warm"]],
)

for epoch in range(cfg["epochs"]):
    for i in torch.randperm(len(x)).split(cfg["batch"]):
        err = net(x[i]) - y[i]
        nll = (0.5 * err.square() * (-2 * log_noise).exp() + log_noise).mean()
        net_opt.zero_grad()
        noise_opt.zero_grad()
        nll.backward()
        net_opt.step()
        noise_opt.step()
        net_sched.step()
    noise_sched.step()
    print(
        f"nll {nll.item():.4f} lr {net_sched.get_last_lr()[0]:.3f} noise lr {noise_opt.param_groups[0]['lr']:.4f}"
    )
