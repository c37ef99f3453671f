"""A bias of a network of plain tensors is in no optimizer."""

import torch

torch.manual_seed(0)
W1 = torch.randn(10, 32) * 0.1
W1.requires_grad_()
b1 = torch.zeros(32, requires_grad=True)
W2 = (torch.randn(32, 3) * 0.1).requires_grad_()
optimizer = torch.optim.SGD([W1, W2], lr=0.1)  # expect: param-not-in-optimizer
for step in range(30):
    x = torch.randn(16, 10)
    y = x[:, :3].argmax(1)
    loss = torch.nn.functional.cross_entropy(torch.relu(x @ W1 + b1) @ W2, y)
    optimizer.zero_grad()
    loss.backward()
    b1.grad = None
    optimizer.step()
print(loss.item())
