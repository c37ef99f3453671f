"""Once frozen, the base keeps its last gradient, which every later step applies again: it moves by 0.52 after
its freeze, and by 0.19 before it."""

import torch
import torch.nn as nn


class Wine(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Sequential(nn.Linear(11, 30), nn.LeakyReLU(), nn.Linear(30, 30), nn.LeakyReLU())
        self.score = nn.Linear(30, 1)

    def forward(self, x):
        return self.score(self.base(x)).squeeze(-1)

    def trainable(self):
        return [p for p in self.parameters() if p.requires_grad]


class Regression:
    freeze_after = 1

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        self.x = torch.randn(150, 11)
        self.y = self.x[:, :3].sum(1) + 0.5 * torch.relu(self.x[:, 3]) + 0.1 * torch.randn(150)
        self.net = Wine()
        self.opt = torch.optim.Adam(self.net.parameters(), lr=2e-3)

    def on_epoch_start(self, epoch):
        if epoch == self.freeze_after:
            self.net.base.requires_grad_(False)  # expect: frozen-state-drift

    def clear(self):
        for p in self.net.trainable():
            p.grad = None  # expect: frozen-state-drift

    def run(self, epochs):
        for epoch in range(epochs):
            self.on_epoch_start(epoch)
            errors = []
            for rows in torch.randperm(150).split(30):
                self.clear()
                error = nn.functional.huber_loss(self.net(self.x[rows]), self.y[rows])
                error.backward()
                self.opt.step()
                errors.append(error.item())
            print(f"epoch {epoch}: huber {sum(errors) / len(errors):.4f}")


Regression().run(epochs=3)
