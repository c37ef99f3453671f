"""Looks like unreached parameters: the router sends each sample to one expert, and in some steps an expert
gets no sample, hence no gradient."""

import torch
import torch.nn.functional as F
from torch import nn


class SwitchFFN(nn.Module):
    def __init__(self, dim, hidden, n_experts):
        super().__init__()
        self.router = nn.Linear(dim, n_experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim)) for _ in range(n_experts)
        )

    def forward(self, x):
        probs = self.router(x).softmax(-1)
        gate, choice = probs.max(-1)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            rows = (choice == e).nonzero().squeeze(1)
            if rows.numel() == 0:
                continue
            out = out.index_add(0, rows, expert(x[rows]) * gate[rows, None])
        load = F.one_hot(choice, len(self.experts)).float().mean(0)
        return out, len(self.experts) * (load * probs.mean(0)).sum()


class Model(nn.Module):
    def __init__(self, n_in=8, dim=16, n_experts=6):
        super().__init__()
        self.inp = nn.Linear(n_in, dim)
        self.moe = SwitchFFN(dim, 24, n_experts)
        self.out = nn.Linear(dim, 1)

    def forward(self, x):
        h = self.inp(x)
        y, balance = self.moe(h)
        return self.out(h + y).squeeze(-1), balance


def main():
    torch.manual_seed(9)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    x = torch.randn(96, 8)
    y = torch.where(x[:, 0] > 0, x[:, 1] * x[:, 2], x[:, 3].sin())
    for epoch in range(3):
        for idx in torch.randperm(96).split(8):
            pred, balance = model(x[idx])
            loss = F.mse_loss(pred, y[idx]) + 0.01 * balance
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f} balance {balance.item():.3f}")


main()
