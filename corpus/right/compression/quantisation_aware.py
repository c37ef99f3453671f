"""Weights and activations are rounded in the forward, which has no gradient; a straight-through function with its own
backward passes it on."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class FakeQuant(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale, lo, hi):
        q = torch.round(x / scale)
        ctx.save_for_backward((q >= lo) & (q <= hi))
        return q.clamp(lo, hi) * scale

    @staticmethod
    def backward(ctx, grad):
        (inside,) = ctx.saved_tensors
        return grad * inside, None, None, None


class QLinear(nn.Linear):
    def __init__(self, n_in, n_out, bits=4):
        super().__init__(n_in, n_out)
        self.hi = 2 ** (bits - 1) - 1

    def forward(self, x):
        ws = self.weight.detach().abs().max() / self.hi
        xs = x.detach().abs().max().clamp(min=1e-8) / self.hi
        w = FakeQuant.apply(self.weight, ws, -self.hi, self.hi)
        return F.linear(FakeQuant.apply(x, xs, -self.hi, self.hi), w, self.bias)


torch.manual_seed(0)
x = torch.randn(250, 8)
y = (x[:, 0] > x[:, 1]).long() + (x[:, 2] > 0).long()
model = nn.Sequential(QLinear(8, 32), nn.ReLU(), QLinear(32, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for epoch in range(3):
    for idx in torch.randperm(250).split(25):
        loss = F.cross_entropy(model(x[idx]), y[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
