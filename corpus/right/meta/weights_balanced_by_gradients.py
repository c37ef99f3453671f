"""Gradients of the last layer weigh a subtracted term, an ascent moves the weights, and steps by hand are detached."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

torch.manual_seed(0)
net, judge = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 6)), nn.Linear(6, 1)
judge.requires_grad_(False)
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(10):  # the weight of an adversarial term
    x = torch.randn(16, 6)
    out = net(x)
    recon, realism = F.mse_loss(out, x), judge(out).mean()
    (of_recon,) = torch.autograd.grad(recon, net[-1].weight, retain_graph=True)
    (of_realism,) = torch.autograd.grad(realism, net[-1].weight, retain_graph=True)
    weight = of_recon.norm() / (of_realism.norm() + 1e-4)
    loss = recon - 0.1 * weight * realism
    opt.zero_grad()
    loss.backward()
    opt.step()

for step in range(10):  # sharpness-aware: the gradient at the worst weights nearby
    x = torch.randn(16, 6)
    weights = dict(net.named_parameters())
    grads = torch.autograd.grad(F.mse_loss(net(x), x), list(weights.values()))
    size = sum(g.square().sum() for g in grads).sqrt()
    worst = {name: p + 0.05 * g / size for (name, p), g in zip(weights.items(), grads)}
    loss = F.mse_loss(functional_call(net, worst, (x,)), x)
    opt.zero_grad()
    loss.backward()
    opt.step()

weights = {name: p.detach().clone().requires_grad_() for name, p in net.named_parameters()}
for step in range(10):  # steps by hand
    x = torch.randn(16, 6)
    loss = F.mse_loss(functional_call(net, weights, (x,)), x)
    grads = torch.autograd.grad(loss, list(weights.values()))
    weights = {name: (p - 0.1 * g).detach().requires_grad_() for (name, p), g in zip(weights.items(), grads)}
print(f"loss {loss.item():.3f}")
