"""The search for a perturbation also fills the model's gradients, and the training loss adds to them: the step uses the sum
of four losses."""

import torch
from torch import nn


class Perturber:
    def __init__(self, model, criterion, radius, iterations=3):
        self.model, self.criterion = model, criterion
        self.radius, self.iterations = radius, iterations

    def __call__(self, signal, target):
        shift = torch.zeros_like(signal, requires_grad=True)
        for _ in range(self.iterations):
            error = self.criterion(self.model(signal + shift), target)
            error.backward()  # expect: cross-loss-leak
            with torch.no_grad():
                shift += self.radius / 2 * shift.grad.sign()
                shift.clamp_(-self.radius, self.radius)
            shift.grad.zero_()
        return (signal + shift).detach()


torch.manual_seed(21)
model = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
criterion = nn.MSELoss()
perturb = Perturber(model, criterion, radius=0.1)
for step in range(16):
    phase = torch.rand(32, 1) * 6.28
    signal = torch.sin(torch.linspace(0, 6.28, 24) + phase)
    target = torch.cat([phase.sin(), phase.cos()], 1)
    optimizer.zero_grad()
    shifted = perturb(signal, target)
    loss = criterion(model(shifted), target)
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        print(f"{step}: {loss.item():.4f}")
