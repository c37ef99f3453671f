"""Looks like clipping on every micro-batch: differential privacy clips each sample's gradient, sums them,
adds noise, divides by the batch and writes .grad."""

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

C, SIGMA, BATCH = 1.0, 0.5, 20
torch.manual_seed(0)
x = torch.randn(100, 10)
y = (x[:, :2].sum(1) > 0).long()
model = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)


def sample_loss(params, xi, yi):
    logits = functional_call(model, params, (xi[None],))
    return nn.functional.cross_entropy(logits, yi[None])


per_sample_grad = vmap(grad(sample_loss), in_dims=(None, 0, 0))

for epoch in range(2):
    for idx in torch.randperm(100).split(BATCH):
        params = {k: p.detach() for k, p in model.named_parameters()}
        grads = per_sample_grad(params, x[idx], y[idx])
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
        factor = (C / (norms + 1e-6)).clamp(max=1.0)
        for name, p in model.named_parameters():
            clipped = torch.einsum("n,n...->...", factor, grads[name])
            p.grad = (clipped + SIGMA * C * torch.randn_like(p)) / BATCH
        optimizer.step()
    with torch.no_grad():
        print(f"epoch {epoch} loss {nn.functional.cross_entropy(model(x), y).item():.4f}")
