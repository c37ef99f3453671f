"""Looks like a divisor that is not the number of micro-batches: each loss is weighted by its share of the
samples of the window, and the short last window knows how many samples it will get."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU())
        self.out = nn.Linear(32, 1)

    def forward(self, x):
        return self.out(self.body(x)).squeeze(-1)


class Trainer:
    def __init__(self, model, dataset, batch_size=10, accumulation_steps=4, lr=5e-3):
        self.model = model
        self.loader = DataLoader(dataset, batch_size, shuffle=True)
        self.accumulation_steps = accumulation_steps
        self.batch_size = batch_size
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def samples_in_window(self, step):
        effective = self.batch_size * self.accumulation_steps
        first = step // self.accumulation_steps * effective
        return min(effective, len(self.loader.dataset) - first)

    def fit(self, epochs):
        for epoch in range(epochs):
            losses = self.train_epoch()
            print(f"[{epoch}] rmse {math.sqrt(losses):.4f}")

    def train_epoch(self):
        self.model.train()
        seen = 0.0
        for step, (x, y) in enumerate(self.loader):
            loss = F.mse_loss(self.model(x), y)
            (loss * (len(y) / self.samples_in_window(step))).backward()
            seen += loss.item() * len(y)
            if (step + 1) % self.accumulation_steps == 0 or (step + 1) == len(self.loader):
                self.optimizer.step()
                self.optimizer.zero_grad()
        return seen / len(self.loader.dataset)


if __name__ == "__main__":
    torch.manual_seed(3)
    x = torch.randn(176, 6)
    y = torch.sin(x[:, 0]) + 0.3 * x[:, 1] * x[:, 2]
    Trainer(Regressor(), TensorDataset(x, y)).fit(epochs=2)
