"""A hand-written layer: the weight is rebound on the first update, the bias changed in place."""

import torch

torch.manual_seed(0)


class Layer:
    def __init__(self, n):
        self.weight = torch.randn(n, 1, requires_grad=True)
        self.bias = torch.zeros(1, requires_grad=True)

    def __call__(self, x):
        return x @ self.weight + self.bias

    def update(self, lr):
        with torch.no_grad():
            if self.weight.grad is not None:
                self.weight = self.weight - lr * self.weight.grad  # expect: ineffective-step
            self.bias -= lr * self.bias.grad
            self.bias.grad = None


layer = Layer(4)
for step in range(25):
    x = torch.randn(8, 4)
    loss = (layer(x).squeeze(1) - x.mean(1)).abs().mean()
    loss.backward()
    layer.update(0.05)
