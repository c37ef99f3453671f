"""The proximal term pulls towards the weights that a client began with, but these are clones with a graph: what pulls
at the weights and what pulls at the clones is the same tensor, and cancels."""

import copy

import torch
from torch import nn

torch.manual_seed(0)


def train_client(model, x, y, mu, lr=0.1):
    start = {name: p.clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for step in range(4):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        distance = 0.0
        for name, p in model.named_parameters():
            distance = distance + (p - start[name]).norm() ** 2  # expect: zero-gradient
        (loss + mu / 2 * distance).backward()
        optimizer.step()
    return loss.item()


server = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
clients = [(torch.randn(48, 6) + shift, torch.randint(3, (48,))) for shift in (-1.0, 0.0, 1.0)]
for turn in range(2):
    models, losses = [], []
    for x, y in clients:
        models.append(copy.deepcopy(server))
        losses.append(train_client(models[-1], x, y, mu=0.5))
    with torch.no_grad():
        for p, *several in zip(server.parameters(), *(m.parameters() for m in models)):
            p.copy_(torch.stack(several).mean(0))
    print(f"round {turn}: {sum(losses) / len(losses):.3f}")
