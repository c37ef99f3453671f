"""An accumulator divides by all counts, and the loop divides by the number of micro-batches, as it did before."""

import torch
from torch import nn

import gradgate as gg

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(7, 14), nn.ReLU(), nn.Linear(14, 1))
accumulator = gg.Accumulator(torch.optim.SGD(net.parameters(), lr=0.05))
steps = 4
data = [(torch.randn(n, 7), torch.randn(n, 1)) for n in (8, 8, 3, 8, 8, 5, 8, 8, 8, 8, 8, 2)]
for epoch in range(2):
    for window in gg.windows(data, size=steps):
        with accumulator.update() as update:
            for x, y in update.micro_batches(window):
                loss = nn.functional.mse_loss(net(x), y)
                update.backward(loss / steps, count=len(x))  # expect: accumulation-scaling
