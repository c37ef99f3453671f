"""The rollback swaps in a deep copy of the best model, whose tensors the optimizer does not know, so all later epochs step a network that is no longer used."""

import copy

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class BestKeeper:
    """Goes back to the best network when the validation loss got worse."""

    def __init__(self, tolerance=0.0):
        self.tolerance = tolerance
        self.best_loss = float("inf")
        self.best_model = None
        self.rollbacks = 0

    def after_epoch(self, trainer, val_loss):
        if val_loss < self.best_loss - self.tolerance:
            self.best_loss = val_loss
            self.best_model = copy.deepcopy(trainer.model)
        else:
            trainer.model = copy.deepcopy(self.best_model)  # expect: stale-optimizer-params
            self.rollbacks += 1


class Trainer:
    def __init__(self, model, train_loader, val_data, keeper, lr):
        self.model = model
        self.train_loader = train_loader
        self.val_data = val_data
        self.keeper = keeper
        self.criterion = nn.MSELoss()
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)

    def train_epoch(self):
        self.model.train()
        for x, y in self.train_loader:
            self.model.zero_grad()
            loss = self.criterion(self.model(x), y)
            loss.backward()
            self.optimizer.step()

    def validate(self):
        self.model.eval()
        x, y = self.val_data
        with torch.no_grad():
            return self.criterion(self.model(x), y).item()

    def fit(self, epochs):
        for epoch in range(epochs):
            self.train_epoch()
            val = self.validate()
            self.keeper.after_epoch(self, val)
            print(f"epoch {epoch} val {val:.4f} rollbacks {self.keeper.rollbacks}")


def noisy_waves(n):
    x = torch.rand(n, 1) * 4 - 2
    return x, torch.sin(3 * x) + 0.1 * torch.randn(n, 1)


def main():
    torch.manual_seed(71)
    torch.set_num_threads(1)
    x, y = noisy_waves(120)
    loader = DataLoader(TensorDataset(x, y), batch_size=12, shuffle=True)
    model = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))
    trainer = Trainer(model, loader, noisy_waves(60), BestKeeper(tolerance=0.02), lr=0.1)
    trainer.fit(3)


if __name__ == "__main__":
    main()
