"""The loop's name is given the new average, which a list and a dict of shadows keep; and a class that hands out its
own dict as its state."""

import torch
from torch import nn

torch.manual_seed(0)


class Shadow:
    def __init__(self, model):
        self.kept = {name: p.detach().clone() for name, p in model.named_parameters()}

    def state_dict(self):
        return self.kept


model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
averages = [p.detach().clone() for p in model.parameters()]
shadow = Shadow(model)
seen = {name: set() for name, _ in model.named_parameters()}
for step in range(12):
    x = torch.randn(16, 8)
    loss = (model(x).squeeze(1) - x.sum(1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        fresh = []
        for average, p in zip(averages, model.parameters()):
            average = 0.9 * average + 0.1 * p
            fresh.append(average)
        averages = fresh
        state = shadow.state_dict()
        for name, p in model.named_parameters():
            state[name] = 0.9 * state[name] + 0.1 * p
            seen[name].add(round(p.abs().max().item(), 3))
gap = sum((average - p).norm().item() for average, p in zip(averages, model.parameters()))
print(f"loss {loss.item():.4f} gap {gap:.4f} kept {shadow.kept['bias'].item():.4f}")
