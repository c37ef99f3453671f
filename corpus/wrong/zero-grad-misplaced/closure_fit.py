"""The closure clears what it has just computed before it hands the loss back to the step: the parameters do
not move in 40 steps.
"""

import torch
from torch import nn


class DecayCurve(nn.Module):
    """amplitude * exp(-rate * t) + offset"""

    def __init__(self):
        super().__init__()
        self.amplitude = nn.Parameter(torch.tensor(1.0))
        self.rate = nn.Parameter(torch.tensor(0.1))
        self.offset = nn.Parameter(torch.tensor(0.0))

    def forward(self, t):
        return self.amplitude * torch.exp(-self.rate * t) + self.offset


def measurements(n=80):
    g = torch.Generator().manual_seed(14)
    t = torch.linspace(0, 8, n)
    counts = 3.0 * torch.exp(-0.7 * t) + 0.4 + 0.05 * torch.randn(n, generator=g)
    return t, counts


def make_closure(model, optimizer, t, counts):
    def closure():
        residual = model(t) - counts
        loss = residual.square().mean()
        loss.backward()
        optimizer.zero_grad()  # expect: zero-grad-misplaced
        return loss

    return closure


def main():
    t, counts = measurements()
    model = DecayCurve()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    closure = make_closure(model, optimizer, t, counts)
    for iteration in range(40):
        loss = optimizer.step(closure)
        if iteration % 10 == 0:
            print(f"iteration {iteration:3d}  chi2 {loss.item():.5f}")
    fitted = {name: round(p.item(), 3) for name, p in model.named_parameters()}
    print("fit:", fitted)


if __name__ == "__main__":
    main()
