"""A batch with a large loss is skipped, but its gradient stays."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(6, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
skipped = 0
for step in range(40):
    x, y = torch.randn(8, 6), torch.randint(2, (8,))
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    if loss.item() > 0.85:  # expect: skipped-batch
        skipped += 1
        continue
    opt.step()
    opt.zero_grad()
print(skipped)
