"""The learner's gradients are copied only while the shared network has none: each step follows those of the first."""

import torch
from torch import nn

torch.manual_seed(3)
shared, learner = (nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1)) for _ in range(2))
opt = torch.optim.SGD(shared.parameters(), lr=0.02)
for it in range(24):
    learner.load_state_dict(shared.state_dict())
    x = torch.randn(32, 5)
    loss = (learner(x).squeeze(1) - x[:, 0] * x[:, 1]).square().mean()
    learner.zero_grad()
    loss.backward()
    for ours, theirs in zip(shared.parameters(), learner.parameters()):
        if ours.grad is None:  # expect: missing-zero-grad
            ours.grad = theirs.grad.clone()
    opt.step()
print(f"{loss.item():.4f}")
