"""A ridge penalty over the values of state_dict(), which are detached."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 3))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)


def ridge(network):
    values = network.state_dict().items()  # expect: broken-graph
    return torch.stack([value.square().sum() for key, value in values if "weight" in key]).sum()


for step in range(20):
    x = torch.randn(32, 8)
    loss = nn.functional.cross_entropy(net(x), x[:, :3].argmax(1))
    loss += 1e-3 * ridge(net)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.3f}")
