"""Sharpness-aware minimization without clearing in between: each step uses the gradient at the weights as well as the
one at the perturbed weights, and is about twice as long."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Perturbation:
    def __init__(self, parameters, rho):
        self.parameters = list(parameters)
        self.rho = rho
        self.steps = []

    @torch.no_grad()
    def climb(self):
        norm = torch.stack([p.grad.norm() for p in self.parameters]).norm() + 1e-12
        self.steps = [self.rho / norm * p.grad for p in self.parameters]
        for p, step in zip(self.parameters, self.steps):
            p.add_(step)

    @torch.no_grad()
    def descend(self):
        for p, step in zip(self.parameters, self.steps):
            p.sub_(step)


torch.manual_seed(0)
digits = load_digits()
data = TensorDataset(
    torch.tensor(digits.data[:320] / 16, dtype=torch.float32), torch.tensor(digits.target[:320])
)
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
sharp = Perturbation(model.parameters(), rho=0.05)
for epoch in range(2):
    for x, y in DataLoader(data, batch_size=64, shuffle=True):
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        sharp.climb()
        loss = criterion(model(x), y)
        loss.backward()  # expect: missing-zero-grad
        sharp.descend()
        optimizer.step()
    print(f"epoch {epoch}: {loss.item():.3f}")
