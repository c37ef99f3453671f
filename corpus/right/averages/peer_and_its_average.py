"""Two networks agree with each other, and the first also with the average of the second, which starts as its copy."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(8)
first, second = nn.Linear(6, 2), nn.Linear(6, 2)
average = copy.deepcopy(second).requires_grad_(False)
adam = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.01)
x = torch.randn(160, 6)
y = x[:, :2] * 2
for inputs, labels in zip(x.split(16), y.split(16), strict=True):
    ours, theirs = first(inputs), second(inputs)
    supervised = F.mse_loss(ours, labels) + F.mse_loss(theirs, labels)
    loss = supervised + 0.1 * F.mse_loss(ours, theirs) + 0.5 * F.mse_loss(ours, average(inputs))
    adam.zero_grad()
    loss.backward()
    adam.step()
    with torch.no_grad():
        for slow, fast in zip(average.parameters(), second.parameters(), strict=True):
            slow.lerp_(fast, 0.05)
print(f"loss {loss.item():.4f}")
