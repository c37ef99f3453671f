"""The windows grow by a plan, 1, then 2, then 4 micro-batches, and each is divided by its own number: the first
one looks like a step after the first micro-batch."""

import torch
from torch import nn

torch.manual_seed(1)
features = torch.randn(14 * 8, 6)
targets = features @ torch.randn(6, 1) + 0.1 * torch.randn(14 * 8, 1)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(features, targets), batch_size=8)

net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

plan = [1, 1, 2, 2, 4, 4]
for epoch in range(2):
    batches = iter(loader)
    for size in plan:
        opt.zero_grad()
        for _ in range(size):
            x, y = next(batches)
            loss = nn.functional.mse_loss(net(x), y) / size
            loss.backward()
        opt.step()
    print(f"epoch {epoch}: {loss.item() * size:.4f}")
