"""A trained layer in front of a borrowed one that runs without gradients: the front never learns.

The front's ``requires_grad`` is on and the optimizer holds it, but ``no_grad`` ends the graph behind it.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_wine
from torch import nn

torch.manual_seed(0)

data = load_wine()
x = torch.tensor(data.data, dtype=torch.float32)
x = (x - x.mean(0)) / x.std(0)
y = torch.tensor(data.target)

front = nn.Linear(13, 16)
middle = nn.Sequential(nn.Linear(16, 16), nn.Tanh())  # from another project
back = nn.Linear(16, 3)

optimizer = torch.optim.Adam([*front.parameters(), *back.parameters()], lr=1e-2)

for epoch in range(2):
    for chunk in torch.randperm(len(x)).split(32):
        h = torch.relu(front(x[chunk]))
        with torch.no_grad():  # expect: broken-graph
            h = middle(h)
        loss = F.cross_entropy(back(h), y[chunk])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}")
