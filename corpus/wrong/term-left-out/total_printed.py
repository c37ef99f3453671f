"""The total is printed in each step, but only its first part is back-propagated."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

torch.manual_seed(4)
body, label = nn.Linear(7, 20), nn.Linear(20, 3)
parameters = [*body.parameters(), *label.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.05)
for step in range(12):
    x = torch.randn(16, 7)
    hidden = body(x).tanh()
    main = cross_entropy(label(hidden), x[:, :3].argmax(1))
    norm = hidden.square().mean()
    total = main + 0.1 * norm  # expect: term-left-out
    optimizer.zero_grad()
    main.backward()
    optimizer.step()
    print(f"step {step}: {total.item():.3f}")
