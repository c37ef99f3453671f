"""Looks like parameters that no gradient reaches: each step trains the shared body and one task's head; the
other head has no gradient then, and the optimizer passes over it."""

import itertools

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class MultiTask(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh())
        self.heads = nn.ModuleDict({name: nn.Linear(16, size) for name, size in heads.items()})

    def forward(self, x, task):
        return self.heads[task](self.body(x))


def make_tasks():
    xs = {name: torch.randn(64, 10) for name in ("topic", "score", "spam")}
    ys = {
        "topic": xs["topic"][:, :4].argmax(1),
        "score": xs["score"][:, 2:3] * 2 - xs["score"][:, 5:6],
        "spam": (xs["spam"][:, 1:2] > 0.5).float(),
    }
    return {name: DataLoader(TensorDataset(xs[name], ys[name]), 16, shuffle=True) for name in xs}


LOSSES = {"topic": F.cross_entropy, "score": F.mse_loss, "spam": F.binary_cross_entropy_with_logits}


def main():
    torch.manual_seed(0)
    loaders = make_tasks()
    model = MultiTask({"topic": 4, "score": 1, "spam": 1})
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    for epoch in range(2):
        streams = {name: iter(loader) for name, loader in loaders.items()}
        last = {}
        for task in itertools.islice(itertools.cycle(streams), 12):
            x, y = next(streams[task])
            optimizer.zero_grad(set_to_none=True)
            loss = LOSSES[task](model(x, task), y)
            loss.backward()
            optimizer.step()
            last[task] = round(loss.item(), 3)
        print(epoch, last)


if __name__ == "__main__":
    main()
