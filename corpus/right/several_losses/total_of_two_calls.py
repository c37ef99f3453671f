"""The sum is only printed, but each of its parts is back-propagated by a call of its own."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

torch.manual_seed(4)
body, label = nn.Linear(7, 20), nn.Linear(20, 3)
optimizer = torch.optim.SGD([*body.parameters(), *label.parameters()], lr=0.05)
smooth = 1.0
for step in range(12):
    x = torch.randn(16, 7)
    hidden = body(x).tanh()
    main = cross_entropy(label(hidden), x[:, :3].argmax(1))
    norm = 0.1 * hidden.square().mean()
    total = main + norm
    optimizer.zero_grad()
    main.backward(retain_graph=True)
    norm.backward()
    optimizer.step()
    average = 0.1 * main + 0.9 * smooth
    smooth = average.item()
    print(f"step {step}: {total.item():.3f}, on average {smooth:.3f}")
