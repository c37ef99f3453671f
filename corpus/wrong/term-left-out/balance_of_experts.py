"""The sum of both terms is never used: the balancing term is printed, and the experts stay unbalanced."""

import torch
from torch import nn


class MoE(nn.Module):
    def __init__(self, n=4):
        super().__init__()
        self.gate = nn.Linear(8, n)
        self.experts = nn.ModuleList(nn.Linear(8, 3) for _ in range(n))

    def forward(self, x):
        weights = self.gate(x).softmax(1)
        load = weights.sum(0)
        outs = torch.stack([expert(x) for expert in self.experts], 1)
        return (weights.unsqueeze(2) * outs).sum(1), load.var() / load.mean() ** 2


def train(model, criterion, optimizer, x, y):
    y_hat, aux_loss = model(x)
    loss = criterion(y_hat, y)
    total_loss = loss + 0.01 * aux_loss  # expect: term-left-out
    optimizer.zero_grad()
    loss.backward()  # expect: term-left-out
    optimizer.step()
    print(f"loss {loss.item():.3f} aux {aux_loss.item():.4f}")


torch.manual_seed(0)
model = MoE()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x, y = torch.rand(64, 8), torch.randint(3, (64,))
for _ in range(12):
    train(model, nn.CrossEntropyLoss(), optimizer, x, y)
