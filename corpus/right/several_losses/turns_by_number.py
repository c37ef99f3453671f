"""Two halves of a network are trained in turns. The number of the turn chooses the loss."""

import torch
from torch import nn

torch.manual_seed(6)
x = torch.randn(40, 5)
low, high = nn.Linear(5, 1), nn.Linear(5, 1)
optimizers = [torch.optim.SGD(half.parameters(), lr=0.05) for half in (low, high)]


def loss_of(batch, turn):
    half = (low, high)[turn]
    return (half(batch).squeeze(1) - batch[:, turn]).square().mean()


for _ in range(6):
    for turn in range(2):
        print(turn, round(loss_of(x, turn).item(), 4))
    for turn, optimizer in enumerate(optimizers):
        optimizer.zero_grad()
        loss = loss_of(x, turn)
        loss.backward()
        optimizer.step()
