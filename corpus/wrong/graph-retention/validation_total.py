"""The sum of the validation losses holds the graphs of all batches until its mean is printed."""

import torch
from torch import nn


class Trainer:
    def __init__(self, model, train_data, val_data, lr=1e-2):
        self.model, self.train_data, self.val_data = model, train_data, val_data
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.loss_fn = nn.MSELoss()

    def train_epoch(self):
        self.model.train()
        for x, y in self.train_data:
            self.optimizer.zero_grad()
            loss = self.loss_fn(self.model(x), y)
            loss.backward()
            self.optimizer.step()

    def validate(self):
        self.model.eval()
        total = 0
        for x, y in self.val_data:
            total += self.loss_fn(self.model(x), y)  # expect: graph-retention
        return total / len(self.val_data)

    def fit(self, epochs):
        for epoch in range(epochs):
            self.train_epoch()
            print(f"epoch {epoch}: {self.validate().item():.3f}")


torch.manual_seed(2)
batches = [(torch.randn(16, 5), torch.randn(16, 1)) for _ in range(8)]
Trainer(nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1)), batches, batches).fit(
    3
)
