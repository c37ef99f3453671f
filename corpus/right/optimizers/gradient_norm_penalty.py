"""A mean of the gradients at the weights and a little uphill, weighed 0.3 and 0.7 by the losses: this penalizes the
norm of the gradient. And noise on the weights between two micro-batches, each with its own."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(5, 20), nn.Tanh(), nn.Linear(20, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
noisy = nn.Linear(5, 1)
noisy_optimizer = torch.optim.Adam(noisy.parameters(), lr=1e-2)
for step in range(12):
    x = torch.randn(64, 5)
    y = x[:, :1] * x[:, 1:2]
    optimizer.zero_grad()
    (0.3 * nn.functional.mse_loss(model(x), y)).backward()
    kept = [p.detach().clone() for p in model.parameters()]
    with torch.no_grad():
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        for p in model.parameters():
            p.add_(0.02 * p.grad / norm)
    loss = nn.functional.mse_loss(model(x), y)
    (0.7 * loss).backward()
    with torch.no_grad():
        for p, before in zip(model.parameters(), kept):
            p.copy_(before)
    optimizer.step()

    noisy_optimizer.zero_grad()
    for part in x.chunk(2):
        noise = [0.05 * torch.randn_like(p) for p in noisy.parameters()]
        with torch.no_grad():
            for p, each in zip(noisy.parameters(), noise):
                p.add_(each)
        (nn.functional.mse_loss(noisy(part), part.sum(1, keepdim=True)) / 2).backward()
        with torch.no_grad():
            for p, each in zip(noisy.parameters(), noise):
                p.sub_(each)
    noisy_optimizer.step()
print(f"loss {loss.item():.4f}")
