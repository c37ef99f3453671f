"""A trainer keeps its optimizers in a dict; only the dense one steps, the embeddings keep their initial values."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.films = nn.Embedding(40, 8), nn.Embedding(60, 8)
        self.mix = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, user, film):
        return self.mix(torch.cat([self.users(user), self.films(film)], 1)).squeeze(1)


class Trainer:
    def __init__(self, model):
        self.model = model
        embeddings = [*model.users.parameters(), *model.films.parameters()]
        self.optims = {
            "embeddings": torch.optim.Adagrad(embeddings, lr=0.05),
            "dense": torch.optim.Adam(model.mix.parameters(), lr=1e-3),
        }

    def update(self, user, film, rating):
        for each in self.optims.values():
            each.zero_grad()
        loss = F.mse_loss(self.model(user, film), rating)
        loss.backward()  # expect: ineffective-step
        self.optims["dense"].step()  # expect: ineffective-step


trainer = Trainer(Recommender())
for _ in range(20):
    trainer.update(torch.randint(40, (32,)), torch.randint(60, (32,)), torch.rand(32))
