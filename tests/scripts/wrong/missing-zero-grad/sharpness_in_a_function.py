"""The ascent of sharpness-aware minimization leaves its gradient in place, and the descent takes the sum of two."""

import torch
import torch.nn.functional as F
from torch import nn


def perturb(model, rho):
    old = {}
    with torch.no_grad():
        norm = sum(p.grad.square().sum() for p in model.parameters()).sqrt()
        for name, p in model.named_parameters():
            old[name] = p.data.clone()
            p.data.add_(p.grad, alpha=(rho / (norm + 1e-9)).item())
    return old


def train_step(model, optimizer, x, y, rho):
    loss = F.mse_loss(model(x), y)
    loss.backward()
    old = perturb(model, rho)
    F.mse_loss(model(x), y).backward()  # expect: missing-zero-grad
    for name, p in model.named_parameters():
        p.data.copy_(old[name])
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()


def main():
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(3, 24), nn.Tanh(), nn.Linear(24, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(10):
        x = torch.rand(48, 3)
        loss = train_step(model, optimizer, x, (x.sum(1, keepdim=True) * 3).sin(), rho=0.02)
        if step % 5 == 4:
            print(f"step {step + 1} loss {loss:.4f}")


if __name__ == "__main__":
    main()
