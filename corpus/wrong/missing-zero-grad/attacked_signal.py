"""A spectrum is attacked in several steps. The optimizer's zero_grad does not reach the gradient of the attack."""

import torch
from torch import nn

torch.manual_seed(5)
STEPS, RADIUS = 4, 0.3
classifier = nn.Sequential(nn.Linear(20, 24), nn.Tanh(), nn.Linear(24, 4))
optimizer = torch.optim.SGD(classifier.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()


def attack(spectra, kinds):
    shift = torch.zeros_like(spectra, requires_grad=True)
    for _ in range(STEPS):
        loss = criterion(classifier(spectra + shift), kinds)
        classifier.zero_grad()
        loss.backward()
        with torch.no_grad():
            shift += 0.1 * shift.grad.sign()  # expect: missing-zero-grad
            shift.clamp_(-RADIUS, RADIUS)
    return spectra + shift.detach()


for batch in range(12):
    kinds = torch.randint(4, (24,))
    spectra = torch.randn(24, 20) + kinds[:, None] * torch.linspace(-1, 1, 20)
    attacked = attack(spectra, kinds)
    optimizer.zero_grad()
    criterion(classifier(attacked), kinds).backward()
    optimizer.step()
