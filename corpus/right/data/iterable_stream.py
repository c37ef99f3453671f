"""Looks like a loop without epochs and without a tail: the data set is an endless stream, and a fixed
number of updates takes a fixed number of batches from it."""

import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Signals(IterableDataset):
    def __init__(self, seed, length=24):
        self.seed, self.length = seed, length

    def __iter__(self):
        rng = torch.Generator().manual_seed(self.seed)
        t = torch.arange(self.length) / self.length
        while True:
            label = int(torch.randint(3, (), generator=rng))
            freq = (2.0, 4.0, 7.0)[label]
            phase = torch.rand((), generator=rng) * 6.28
            noise = 0.3 * torch.randn(self.length, generator=rng)
            yield torch.sin(6.28 * freq * t + phase) + noise, label


MAX_UPDATES, ACCUMULATE = 8, 2
torch.manual_seed(0)
net = nn.Sequential(
    nn.Unflatten(1, (1, 24)),
    nn.Conv1d(1, 12, 5, padding=2),
    nn.ReLU(),
    nn.Conv1d(12, 12, 5, padding=2),
    nn.ReLU(),
    nn.AdaptiveAvgPool1d(1),
    nn.Flatten(),
    nn.Linear(12, 3),
)
optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
batches = iter(DataLoader(Signals(seed=1), batch_size=16))

for update in range(1, MAX_UPDATES + 1):
    loss_sum = 0.0
    for signal, label in itertools.islice(batches, ACCUMULATE):
        loss = nn.functional.cross_entropy(net(signal), label) / ACCUMULATE
        loss.backward()
        loss_sum += loss.item()
    optimizer.step()
    optimizer.zero_grad()
    if update % 4 == 0:
        print(f"update {update} loss {loss_sum:.4f}")
