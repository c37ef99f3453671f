"""A mixture of experts that drops the result of ``index_add``: its output is zero, and the experts never
train."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(15)


class Mixture(nn.Module):
    def __init__(self, d=8, experts=3):
        super().__init__()
        self.router = nn.Linear(d, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(d, 16), nn.ReLU(), nn.Linear(16, d)) for _ in range(experts)
        )

    def forward(self, x):
        logits = self.router(x)
        gates, chosen = logits.softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows = (chosen == i).nonzero(as_tuple=True)[0]
            if rows.numel():
                weighted = expert(x[rows]) * gates[rows].unsqueeze(1)
                out.index_add(0, rows, weighted)  # expect: unreached-parameter
        return out, logits.logsumexp(-1).square().mean()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 8)
        self.mixture = Mixture()
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        h = self.inner(x)
        mixed, z = self.mixture(h)
        return self.head(h + mixed), z


net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
for step in range(16):
    x = torch.randn(64, 4)
    logits, z = net(x)
    loss = F.cross_entropy(logits, x[:, :3].argmax(1)) + 1e-3 * z
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 8 == 7:
        print(f"step {step} loss {loss.item():.4f}")
