"""A softmax over the items of a list is pooled by a matrix, and its result goes into cross_entropy; the probabilities
of a second head are only compared by nll_loss of their logarithm."""

import torch
import torch.nn.functional as F
from torch import nn


class Pooler(nn.Module):
    def __init__(self, size, classes):
        super().__init__()
        self.score = nn.Linear(size, 1)
        self.head = nn.Linear(size, classes)
        self.coarse = nn.Linear(size, 2)

    def forward(self, items):
        weights = self.score(items).softmax(dim=1)
        pooled = (weights * items).sum(1)
        return self.head(pooled), self.coarse(pooled).softmax(-1)


torch.manual_seed(2)
model = Pooler(8, 4)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(8):
    items = torch.randn(32, 5, 8)
    y = items.mean(1)[:, :4].argmax(1)
    logits, coarse = model(items)
    loss = F.cross_entropy(logits, y) + 0.3 * F.nll_loss(coarse.log(), y // 2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
