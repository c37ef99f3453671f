"""The layers return the value of their log-determinant without its graph: only the prior trains the flow, which
shrinks everything to a point."""

import torch
from sklearn.datasets import make_moons
from torch import nn

torch.manual_seed(0)


class Coupling(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.register_buffer("mask", mask)
        self.s = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2), nn.Tanh())
        self.t = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, x):
        kept = x * self.mask
        s = self.s(kept) * (1 - self.mask)
        t = self.t(kept) * (1 - self.mask)
        return kept + (1 - self.mask) * (x * torch.exp(s) + t), s.data.sum(1)  # expect: broken-graph


class Flow(nn.Module):
    def __init__(self, n=4):
        super().__init__()
        masks = [torch.tensor([i % 2, (i + 1) % 2]).float() for i in range(n)]
        self.layers = nn.ModuleList(map(Coupling, masks))

    def log_prob(self, x):
        log_det = torch.zeros(x.size(0))
        for layer in self.layers:
            x, d = layer(x)
            log_det = log_det + d
        prior = -0.5 * (x**2).sum(1) - 1.8379
        return prior + log_det


data = torch.tensor(make_moons(200, noise=0.05, random_state=0)[0], dtype=torch.float32)
flow = Flow()
opt = torch.optim.Adam(flow.parameters(), lr=2e-3)
for it in range(8):
    batch = data[torch.randint(0, 200, (64,))]
    nll = -flow.log_prob(batch).mean()
    opt.zero_grad()
    nll.backward()
    opt.step()
print(nll.item())
