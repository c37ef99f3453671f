"""Gradients are cleared only when an epoch starts, so every step inside the epoch applies the gradients of all its earlier batches again."""

import torch
from sklearn.datasets import load_wine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Hook:
    def epoch_start(self, run): ...
    def batch_end(self, run): ...
    def epoch_end(self, run): ...


class ResetHook(Hook):
    def epoch_start(self, run):
        run.optimizer.zero_grad()  # expect: missing-zero-grad
        run.seen = 0
        run.loss_sum = 0.0


class ReportHook(Hook):
    def batch_end(self, run):
        run.loss_sum += run.loss.item() * run.batch_len
        run.seen += run.batch_len

    def epoch_end(self, run):
        print(f"epoch {run.epoch}: mean loss {run.loss_sum / run.seen:.4f}")


class SnapshotHook(Hook):
    def __init__(self):
        self.best, self.state = float("inf"), None

    def epoch_end(self, run):
        mean = run.loss_sum / run.seen
        if mean < self.best:
            self.best = mean
            self.state = {k: v.detach().clone() for k, v in run.model.state_dict().items()}


class Run:
    def __init__(self, model, loader, lr, hooks):
        self.model = model
        self.loader = loader
        self.hooks = hooks
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        self.criterion = nn.CrossEntropyLoss()

    def fire(self, name):
        for hook in self.hooks:
            getattr(hook, name)(self)

    def train(self, epochs):
        for self.epoch in range(epochs):
            self.model.train()
            self.fire("epoch_start")
            for x, y in self.loader:
                self.batch_len = len(x)
                self.loss = self.criterion(self.model(x), y)
                self.loss.backward()
                self.optimizer.step()  # expect: missing-zero-grad
                self.fire("batch_end")
            self.fire("epoch_end")


def get_loader():
    data = load_wine()
    x = torch.tensor(data.data, dtype=torch.float32)
    x = (x - x.mean(0)) / x.std(0)
    return DataLoader(TensorDataset(x, torch.tensor(data.target)), batch_size=32, shuffle=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(2)
    mlp = nn.Sequential(nn.Linear(13, 20), nn.Tanh(), nn.Dropout(0.1), nn.Linear(20, 3))
    snapshot = SnapshotHook()
    Run(mlp, get_loader(), 0.05, [ResetHook(), ReportHook(), snapshot]).train(3)
    print("best", round(snapshot.best, 4))
