"""A reentrant checkpoint of adapters on a frozen embedding, whose output is made to need a gradient."""

import warnings

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

warnings.filterwarnings("ignore")


class Adapter(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.down, self.up = nn.Linear(width, 3), nn.Linear(3, width)

    def forward(self, h):
        return h + self.up(torch.relu(self.down(self.frozen(h))))


class Reader(nn.Module):
    def __init__(self, saves_memory=True):
        super().__init__()
        self.words = nn.Embedding(20, 8).requires_grad_(False)
        self.blocks = nn.ModuleList(Adapter(8) for _ in range(2))
        self.answer = nn.Linear(8, 2)
        self.saves_memory = saves_memory

    def forward(self, text):
        h = self.words(text).mean(1).requires_grad_()
        for block in self.blocks:
            if self.saves_memory:
                h = checkpoint(block, h, use_reentrant=True)
            else:
                h = block(h)
        return self.answer(h)


torch.manual_seed(0)
reader = Reader()
optimizer = torch.optim.AdamW([p for p in reader.parameters() if p.requires_grad], lr=1e-3)
for _ in range(12):
    text = torch.randint(20, (16, 5))
    loss = nn.functional.cross_entropy(reader(text), (text[:, 0] > 9).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
