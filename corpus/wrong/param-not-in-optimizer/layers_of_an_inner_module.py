"""The inner network collects its layers in a local list and keeps the list: only the embeddings are trained."""

import torch
from torch import nn


class Tower(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        layers = []
        for n_in, n_out in zip(sizes, sizes[1:]):
            layers.append(nn.Linear(n_in, n_out))
            layers.append(nn.Tanh())
        self.layers = layers  # expect: param-not-in-optimizer

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Recommender(nn.Module):
    def __init__(self, n_users, n_items):
        super().__init__()
        self.users, self.items = nn.Embedding(n_users, 8), nn.Embedding(n_items, 8)
        self.tower = Tower([16, 12, 1])

    def forward(self, u, i):
        return self.tower(torch.cat([self.users(u), self.items(i)], 1)).squeeze(1)


def fit(steps):
    torch.manual_seed(1)
    model = Recommender(30, 20)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        u, i = torch.randint(30, (32,)), torch.randint(20, (32,))
        loss = nn.functional.mse_loss(model(u, i), ((u + i) % 2).float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


print(f"{fit(16):.4f}")
