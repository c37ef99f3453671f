"""Once an epoch, the spread of the gradients over single batches is measured with numpy and in a buffer."""

import numpy as np
import torch
from torch import nn


def spread(net, batches, criterion):
    flat, total = [], [torch.zeros_like(p) for p in net.parameters()]
    for x, y in batches:
        criterion(net(x), y).backward()
        flat.append(np.concatenate([p.grad.numpy().ravel() for p in net.parameters()]))
        for sink, p in zip(total, net.parameters()):
            sink.copy_(p.grad)
        net.zero_grad(set_to_none=False)
    return float(np.stack(flat).std(0).mean()), sum(sink.norm() for sink in total).item()


torch.manual_seed(9)
net = nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 3))
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
criterion = nn.CrossEntropyLoss()
x = torch.randn(60, 7)
batches = list(zip(x.split(12), x[:, :3].argmax(1).split(12)))
for epoch in range(3):
    noise, size = spread(net, batches, criterion)
    for inputs, labels in batches:
        loss = criterion(net(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} noise {noise:.4f} size {size:.3f} loss {loss.item():.4f}")
