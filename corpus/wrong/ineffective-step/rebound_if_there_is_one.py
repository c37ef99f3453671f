"""A line fitted by hand: the slope and the offset are replaced by new tensors in the first update, and stay there."""

import torch

torch.manual_seed(1)
x = torch.linspace(-1, 1, 50)
y = 2 * x - 0.5 + 0.05 * torch.randn(50)


class Line:
    def __init__(self):
        self.slope = torch.zeros(1, requires_grad=True)
        self.offset = torch.zeros(1, requires_grad=True)

    def __call__(self, x):
        return self.slope * x + self.offset

    def step(self, lr):
        if self.slope.grad is not None:
            self.slope = self.slope - lr * self.slope.grad  # expect: ineffective-step
            self.offset = self.offset - lr * self.offset.grad


line = Line()
for t in range(20):
    loss = (line(x) - y).pow(2).mean()
    loss.backward()
    line.step(0.3)
print(f"{loss.item():.4f}")
