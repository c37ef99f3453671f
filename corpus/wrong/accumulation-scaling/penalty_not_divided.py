"""The penalty is not divided by the number of micro-batches."""

import torch
from torch import nn
import torch.nn.functional as F


class Trainer:
    def __init__(self, accumulate):
        self.k = accumulate
        self.model = nn.Linear(6, 3)
        self.opt = torch.optim.SGD(self.model.parameters(), 0.1)

    def micro(self, x, y):
        task = F.cross_entropy(self.model(x), y)
        reg = sum(p.square().sum() for p in self.model.parameters())
        (task / self.k + 1e-3 * reg).backward()  # expect: accumulation-scaling

    def train(self, batches):
        for i, (x, y) in enumerate(batches, 1):
            self.micro(x, y)
            if i % self.k == 0:
                self.opt.step()
                self.opt.zero_grad()


torch.manual_seed(0)
Trainer(4).train([(torch.randn(8, 6), torch.randint(3, (8,))) for _ in range(24)])
