"""Layers without parameters made in forward; and random features under no_grad."""

import torch
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x):
        h = nn.LayerNorm(8, elementwise_affine=False)(self.a(x))
        return self.b(nn.Dropout(0.1)(nn.ReLU()(h)))


net = Net()
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
for _ in range(10):
    with torch.no_grad():
        x = nn.Linear(3, 6)(torch.randn(8, 3))
    opt.zero_grad()
    nn.functional.cross_entropy(net(x), torch.randint(2, (8,))).backward()
    opt.step()
