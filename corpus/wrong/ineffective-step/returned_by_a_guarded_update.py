"""The update returns a new tensor, or the old one where it finds no gradient: it finds none from the second time on."""

import torch

torch.manual_seed(2)
x = torch.randn(80, 5)
y = (x @ torch.tensor([1.0, -1.0, 0.5, 0.0, 2.0]) > 0).float()


def updated(weight, lr):
    slope = weight.grad
    if slope is None:
        return weight
    return weight - lr * slope  # expect: ineffective-step


w = torch.zeros(5, requires_grad=True)
bias = torch.zeros(1, requires_grad=True)
for epoch in range(15):
    loss = torch.nn.functional.binary_cross_entropy_with_logits(x @ w + bias, y)
    loss.backward()
    w, bias = updated(w, 0.5), updated(bias, 0.5)
print(f"{loss.item():.4f}")
