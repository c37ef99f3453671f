"""Looks like gradients consumed by the wrong step: two optimizers own disjoint parameters and share one
backward; the sparse one is plain SGD, and each clears its own."""

import torch
import torch.nn.functional as F
from torch import nn


class Recommender(nn.Module):
    def __init__(self, n_users=40, n_items=60, dim=12):
        super().__init__()
        self.user = nn.Embedding(n_users, dim, sparse=True)
        self.item = nn.Embedding(n_items, dim, sparse=True)
        self.mlp = nn.Sequential(nn.Linear(2 * dim, 24), nn.ReLU(), nn.Linear(24, 1))

    def forward(self, u, i):
        eu, ei = self.user(u), self.item(i)
        return (eu * ei).sum(1) + self.mlp(torch.cat([eu, ei], 1)).squeeze(1)


class Fit:
    def __init__(self, model):
        self.model = model
        self.sparse = torch.optim.SparseAdam([*model.user.parameters(), *model.item.parameters()], lr=0.02)
        self.dense = torch.optim.AdamW(model.mlp.parameters(), lr=2e-3)

    def batch(self, u, i, r):
        loss = F.mse_loss(self.model(u, i), r)
        for opt in (self.sparse, self.dense):
            opt.zero_grad()
        loss.backward()
        for opt in (self.sparse, self.dense):
            opt.step()
        return loss.item()


if __name__ == "__main__":
    torch.manual_seed(3)
    taste, kind = torch.randn(40, 3), torch.randn(60, 3)
    u, i = torch.randint(40, (400,)), torch.randint(60, (400,))
    r = (taste[u] * kind[i]).sum(1)
    fit = Fit(Recommender())
    for epoch in range(2):
        losses = [fit.batch(u[k], i[k], r[k]) for k in torch.randperm(400).split(50)]
        print(f"epoch {epoch}: mse {sum(losses) / len(losses):.4f}")
