"""The gradient monitor frees the gradients after it has logged them, but it runs between backward and step, so every third update does nothing."""

import statistics

import torch
from sklearn.datasets import load_breast_cancer
from torch import nn


class GradMonitor:
    """Collects gradient norms per layer every few batches."""

    def __init__(self, model, every=3):
        self.model = model
        self.every = every
        self.calls = 0
        self.records = {name: [] for name, _ in model.named_parameters()}

    def __call__(self):
        self.calls += 1
        if self.calls % self.every:
            return
        for name, p in self.model.named_parameters():
            self.records[name].append(p.grad.norm().item())
        self.model.zero_grad()  # expect: zero-grad-misplaced

    def summary(self):
        return {k: round(statistics.mean(v), 4) for k, v in self.records.items() if v}


class Learner:
    def __init__(self, model, lr=0.05):
        self.model = model
        self.opt = torch.optim.SGD(model.parameters(), lr=lr, nesterov=True, momentum=0.9)
        self.loss_fn = nn.BCEWithLogitsLoss()
        self.monitor = GradMonitor(model)

    def train_step(self, x, y):
        self.opt.zero_grad()
        loss = self.loss_fn(self.model(x).squeeze(1), y)
        loss.backward()
        self.monitor()
        self.opt.step()
        return loss.item()

    @torch.no_grad()
    def score(self, x, y):
        self.model.eval()
        acc = ((self.model(x).squeeze(1) > 0).float() == y).float().mean().item()
        self.model.train()
        return acc


def load():
    bunch = load_breast_cancer()
    x = torch.tensor(bunch.data, dtype=torch.float32)
    x = (x - x.mean(0)) / x.std(0)
    y = torch.tensor(bunch.target, dtype=torch.float32)
    perm = torch.randperm(len(x))
    return x[perm], y[perm]


def main():
    torch.set_num_threads(1)
    torch.manual_seed(31)
    x, y = load()
    x_train, y_train, x_test, y_test = x[:384], y[:384], x[384:], y[384:]
    learner = Learner(nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Linear(16, 1)))
    for epoch in range(2):
        for idx in torch.randperm(len(x_train)).split(48):
            loss = learner.train_step(x_train[idx], y_train[idx])
        print(f"epoch {epoch} last loss {loss:.4f} test acc {learner.score(x_test, y_test):.3f}")
    print(learner.monitor.summary())


if __name__ == "__main__":
    main()
