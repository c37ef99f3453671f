"""The load balancing of a mixture of experts over a whole window, with gradgate: statistics of micro-batches are their
representations, and the ordinary loss travels along as a sum. Nothing is divided by the number of micro-batches."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import gradgate as gg

torch.manual_seed(0)
digits = load_digits()
images = torch.from_numpy(digits.data / 16).float()[:400]
labels = torch.from_numpy(digits.target)[:400]
EXPERTS = 4


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(64, EXPERTS)
        self.experts = nn.ModuleList(nn.Linear(64, 10) for _ in range(EXPERTS))

    def forward(self, x):
        weights = self.router(x).softmax(1)
        weight, chosen = weights.max(1)
        outputs = torch.stack([expert(x) for expert in self.experts], 1)
        return weight[:, None] * outputs[torch.arange(len(x)), chosen], weights, chosen


model = Mixture()
accumulator = gg.Accumulator(torch.optim.AdamW(model.parameters(), lr=1e-2), model=model)


def statistics(part):
    outputs, weights, chosen = model(images[part])
    return {
        "loss": F.cross_entropy(outputs, labels[part], reduction="sum"),
        "weights": weights.sum(0, keepdim=True),
        "chosen": F.one_hot(chosen, EXPERTS).sum(0, keepdim=True),
        "count": torch.tensor(len(part)),
    }


def loss_fn(window):
    count = window["count"].sum()
    shares, means = window["chosen"].sum(0) / count, window["weights"].sum(0) / count
    return window["loss"].sum() / count + 0.1 * EXPERTS * (shares * means).sum()


for epoch in range(3):
    for batch in torch.randperm(len(images)).split(128):
        with accumulator.update() as update:
            update.backward_coupled(statistics, batch.split(32), loss_fn)
    print(f"epoch {epoch}: {update.loss:.3f}")
