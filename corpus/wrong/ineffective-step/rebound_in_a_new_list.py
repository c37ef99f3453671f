"""The helper collects results in a new list. Their gradient is None, so that from then on it returns them as they are."""

import torch

torch.manual_seed(4)
x = torch.rand(120, 3)
y = (x * torch.tensor([2.0, -1.0, 0.5])).sum(1)


def descend(tensors, rate):
    after = []
    for tensor in tensors:
        slope = tensor.grad
        if slope is None:
            after.append(tensor)
        else:
            after.append(tensor - rate * slope)  # expect: ineffective-step
    return after


weights = [torch.randn(3, 6).requires_grad_(), torch.randn(6).requires_grad_()]
for epoch in range(4):
    for rows in torch.arange(120).split(30):
        first, second = weights
        loss = ((x[rows] @ first).relu() @ second - y[rows]).square().mean()
        loss.backward()
        weights = descend(weights, 0.05)
    print(f"epoch {epoch} loss {loss.item():.4f}")
