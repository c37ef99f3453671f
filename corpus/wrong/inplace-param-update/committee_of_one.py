"""The members of a committee are one network: the list was multiplied."""

import torch
from torch import nn

torch.manual_seed(0)
MEMBERS = 3


def regressor():
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))


committee = [regressor()] * MEMBERS  # expect: inplace-param-update
optimizers = [torch.optim.Adam(member.parameters(), lr=1e-2) for member in committee]
inputs = torch.rand(96, 2)
targets = (6 * inputs[:, :1]).sin() + inputs[:, 1:]
for epoch in range(4):
    for member, optimizer in zip(committee, optimizers):
        for rows in torch.randint(96, (3, 64)):
            optimizer.zero_grad()
            nn.functional.mse_loss(member(inputs[rows]), targets[rows]).backward()
            optimizer.step()
