"""Each round of self-training starts with a fresh projector of its own class; the optimizer has only the encoder."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Projector(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.hidden = nn.Linear(width, width)
        self.out = nn.Linear(width, classes)

    def forward(self, h):
        return self.out(F.relu(self.hidden(h)))


class Rounds:
    def __init__(self):
        self.encoder = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 8))
        self.optimizer = torch.optim.Adam(self.encoder.parameters(), lr=0.01)

    def run(self, x, y):
        for _ in range(3):
            projector = Projector(8, 3)  # expect: param-not-in-optimizer
            for rows, labels in zip(x.split(16), y.split(16)):
                self.optimizer.zero_grad()
                F.cross_entropy(projector(self.encoder(rows)), labels).backward()
                self.optimizer.step()


Rounds().run(torch.randn(96, 10), torch.randint(3, (96,)))
