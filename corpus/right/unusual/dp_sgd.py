"""The gradients are clipped sample by sample, summed, noised and written into `.grad` by hand; no backward is called on
the batch."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad, vmap

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
MAX_NORM, SIGMA = 1.0, 0.3


def sample_loss(params, x, y):
    return F.cross_entropy(functional_call(net, params, (x[None],)), y[None])


per_sample_grad = vmap(grad(sample_loss), in_dims=(None, 0, 0))


def private_step(x, y):
    params = {k: p.detach() for k, p in net.named_parameters()}
    grads = per_sample_grad(params, x, y)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
    factor = (MAX_NORM / (norms + 1e-6)).clamp(max=1.0)
    for name, p in net.named_parameters():
        summed = torch.einsum("n,n...->...", factor, grads[name])
        p.grad = (summed + SIGMA * MAX_NORM * torch.randn_like(p)) / len(x)
    optimizer.step()
    return norms.median().item()


x = torch.randn(300, 6)
y = (x[:, 0] + x[:, 1] > 0).long()
for epoch in range(3):
    for idx in torch.randperm(300).split(50):
        med = private_step(x[idx], y[idx])
    acc = (net(x).argmax(1) == y).float().mean().item()
    print(f"epoch {epoch} acc {acc:.3f} median norm {med:.3f}")
