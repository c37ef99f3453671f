"""Looks like one term added twice: the log-variances come out of one unbind(), whose outputs differ."""

import torch
from torch import nn

torch.manual_seed(0)


class Uncertainty(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.log_vars = nn.Parameter(torch.zeros(n))

    def forward(self, losses):
        return sum(torch.exp(-s) * l + s for s, l in zip(self.log_vars, losses))


net = nn.ModuleDict({"enc": nn.Linear(6, 24), "a": nn.Linear(24, 1), "b": nn.Linear(24, 3)})
balance = Uncertainty(2)
opt = torch.optim.Adam([*net.parameters(), *balance.parameters()], lr=1e-2)
for epoch in range(8):
    x = torch.randn(32, 6)
    h = torch.tanh(net["enc"](x))
    la = (net["a"](h).squeeze(-1) - x.sum(1)).pow(2).mean()
    lb = nn.functional.cross_entropy(net["b"](h), x[:, :3].argmax(1))
    loss = balance([la, lb])
    opt.zero_grad()
    loss.backward()
    opt.step()
print(balance.log_vars.tolist())
