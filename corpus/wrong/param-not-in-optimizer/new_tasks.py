"""Each further task brings a head that the optimizer made at the start never hears of: two of three heads stay
as drawn, and the second task ends at 1.11 instead of 0.99."""

import torch
import torch.nn as nn


class ContinualLearner:
    def __init__(self, in_dim=12, hidden=32, lr=0.05):
        self.hidden = hidden
        body = nn.Sequential(nn.Linear(in_dim, hidden), nn.ReLU())
        self.model = nn.ModuleDict({"body": body, "task0": nn.Linear(hidden, 2)})
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr, momentum=0.9)
        self.criterion = nn.CrossEntropyLoss()

    def add_task(self, name, n_classes):
        self.model[name] = nn.Linear(self.hidden, n_classes)  # expect: param-not-in-optimizer

    def observe(self, name, x, y):
        self.model.train()
        logits = self.model[name](self.model["body"](x))
        loss = self.criterion(logits, y)
        self.model.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def stream(name, n_classes, batches=6, size=20):
    weight = torch.randn(12, n_classes)
    for _ in range(batches):
        x = torch.randn(size, 12)
        yield name, x, (x @ weight).argmax(1)


def main():
    torch.manual_seed(4)
    learner = ContinualLearner()
    for number, n_classes in enumerate([2, 3, 4]):
        name = f"task{number}"
        if number:
            learner.add_task(name, n_classes)
        losses = [learner.observe(*batch) for batch in stream(name, n_classes)]
        print(f"{name}: {losses[0]:.3f} -> {losses[-1]:.3f}")


main()
