"""Looks like a leak into the features and a wrong sign: domain-adversarial training turns the domain loss's
gradient around before it enters the features."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class ReverseGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.neg() * ctx.alpha, None


class DANN(nn.Module):
    def __init__(self):
        super().__init__()
        self.feature = nn.Sequential(nn.Linear(8, 24), nn.ReLU())
        self.label = nn.Linear(24, 3)
        self.domain = nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x, alpha):
        h = self.feature(x)
        return self.label(h), self.domain(ReverseGrad.apply(h, alpha))


torch.manual_seed(0)
xs = torch.randn(96, 8)
ys = xs[:, :3].argmax(1)
xt = torch.randn(96, 8) + torch.tensor([0.0] * 5 + [1.5] * 3)
net = DANN()
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
n_epochs, n_batches = 2, 4

for epoch in range(n_epochs):
    for i, (s, t) in enumerate(zip(torch.randperm(96).chunk(n_batches), torch.randperm(96).chunk(n_batches))):
        p = (i + epoch * n_batches) / (n_epochs * n_batches)
        alpha = 2.0 / (1.0 + math.exp(-10 * p)) - 1
        opt.zero_grad()
        class_out, dom_s = net(xs[s], alpha)
        _, dom_t = net(xt[t], alpha)
        err_label = F.cross_entropy(class_out, ys[s])
        err_domain = F.cross_entropy(dom_s, torch.zeros_like(s)) + F.cross_entropy(dom_t, torch.ones_like(t))
        (err_label + err_domain).backward()
        opt.step()
    print(f"epoch {epoch} label {err_label.item():.4f} domain {err_domain.item():.4f}")
