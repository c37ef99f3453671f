"""From the third epoch on the encoder requires gradients, but only the decoder is in the optimizer."""

import torch
from torch import nn

torch.manual_seed(1)
net = nn.ModuleDict({"encoder": nn.Linear(16, 12), "decoder": nn.Linear(12, 16)})
optimizer = torch.optim.SGD(net["decoder"].parameters(), lr=0.05)
data = torch.randn(80, 16)
for epoch in range(5):
    for p in net["encoder"].parameters():  # expect: param-not-in-optimizer
        p.requires_grad = epoch >= 2  # expect: param-not-in-optimizer
    for x in data.split(20):
        loss = nn.functional.mse_loss(net["decoder"](net["encoder"](x).tanh()), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
