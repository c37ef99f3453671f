"""The metric callback keeps the raw model outputs of every training batch of the run, and with them the graph of every forward pass."""

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score
from torch import nn


class Callback:
    def on_train_batch_end(self, output, target, loss): ...
    def on_train_end(self): ...


class LossLogger(Callback):
    def __init__(self):
        self.values = []

    def on_train_batch_end(self, output, target, loss):
        self.values.append(loss.item())

    def on_train_end(self):
        k = max(1, len(self.values) // 4)
        print(f"loss first {sum(self.values[:k]) / k:.4f} last {sum(self.values[-k:]) / k:.4f}")


class AUCMetric(Callback):
    def __init__(self):
        self.outputs, self.targets = [], []

    def on_train_batch_end(self, output, target, loss):
        self.outputs.append(output)  # expect: graph-retention
        self.targets.append(target)

    def on_train_end(self):
        scores = torch.cat(self.outputs).detach().sigmoid().numpy()
        print(f"train auc {roc_auc_score(torch.cat(self.targets).numpy(), scores):.4f}")


class Engine:
    def __init__(self, model, optimizer, criterion, callbacks):
        self.model, self.optimizer, self.criterion = model, optimizer, criterion
        self.callbacks = callbacks

    def train(self, x, y, epochs, batch_size):
        self.model.train()
        for _ in range(epochs):
            for idx in torch.randperm(len(x)).split(batch_size):
                output = self.model(x[idx]).squeeze(-1)
                loss = self.criterion(output, y[idx])
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                for cb in self.callbacks:
                    cb.on_train_batch_end(output, y[idx], loss)
        for cb in self.callbacks:
            cb.on_train_end()


def standardise(x):
    return (x - x.mean(0)) / x.std(0)


def main():
    torch.manual_seed(38)
    torch.set_num_threads(1)
    bunch = load_breast_cancer()
    x = standardise(torch.tensor(bunch.data, dtype=torch.float32))
    y = torch.tensor(bunch.target, dtype=torch.float32)
    model = nn.Sequential(nn.Linear(30, 24), nn.SELU(), nn.AlphaDropout(0.05), nn.Linear(24, 1))
    engine = Engine(
        model,
        torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9),
        nn.BCEWithLogitsLoss(),
        [LossLogger(), AUCMetric()],
    )
    engine.train(x, y, epochs=2, batch_size=48)


if __name__ == "__main__":
    main()
