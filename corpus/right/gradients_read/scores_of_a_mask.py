"""Gradients of a layer's gates rank its units for pruning. The optimizer holds the gates too, but should not move them."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = nn.Linear(6, 16), nn.Linear(16, 2)
        self.gates = nn.Parameter(torch.ones(16))

    def forward(self, x, gates):
        return self.out(torch.relu(self.hidden(x)) * gates)


torch.manual_seed(0)
net, probe = Net(), nn.Linear(2, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
probe_optimizer = torch.optim.SGD(probe.parameters(), lr=0.1)
scores = torch.zeros(16)
for _ in range(20):
    x = torch.randn(32, 6)
    y = (x[:, 0] > 0).long()
    probe_optimizer.zero_grad()
    nn.functional.cross_entropy(probe(net(x, net.gates)), 1 - y).backward()
    probe_optimizer.step()
    scores += net.gates.grad.abs()
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(x, net.gates.detach()), y)
    loss.backward()
    optimizer.step()
print(f"{loss.item():.4f}", scores.topk(3).indices.tolist())
