"""Clipping is done right after the clearing, when there are no gradients yet: the first step is given 143
times the norm that was asked for.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Adding(Dataset):
    """The adding problem: sum the two marked numbers of a sequence."""

    def __init__(self, n, length=30, seed=0):
        g = torch.Generator().manual_seed(seed)
        values = torch.rand(n, length, generator=g) * 2
        marks = torch.zeros(n, length)
        half = length // 2
        marks[torch.arange(n), torch.randint(half, (n,), generator=g)] = 1
        marks[torch.arange(n), half + torch.randint(half, (n,), generator=g)] = 1
        self.x = torch.stack([values, marks], dim=-1)
        self.y = (values * marks).sum(1)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class ElmanRegressor(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.rnn = nn.RNN(2, hidden, nonlinearity="relu", batch_first=True)
        nn.init.eye_(self.rnn.weight_hh_l0)
        self.readout = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.readout(self.rnn(x)[1][-1]).squeeze(-1)


def before_batch(model, optimizer, max_norm):
    optimizer.zero_grad()
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)  # expect: clip-misplaced


def run(epochs=2, max_norm=1.0):
    torch.manual_seed(0)
    loader = DataLoader(Adding(128), batch_size=32, shuffle=True)
    model = ElmanRegressor()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for epoch in range(epochs):
        model.train()
        losses = []
        for x, y in loader:
            before_batch(model, optimizer, max_norm)
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: mse {sum(losses) / len(losses):.3f}")


run()
