"""x + detach, the other way round: the skip keeps its gradient, the branch is cut."""

import torch
from torch import nn

torch.manual_seed(0)
trunk, refine, head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)
optimizer = torch.optim.SGD([*trunk.parameters(), *refine.parameters(), *head.parameters()], lr=0.1)
for _ in range(15):
    x, y = torch.randn(16, 8), torch.randint(2, (16,))
    h = torch.tanh(trunk(x))
    delta = refine(h)
    h = h + delta.detach()  # expect: broken-graph
    loss = nn.functional.cross_entropy(head(h), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
