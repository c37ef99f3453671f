"""A population copies its best member to all of them, one of which is the best itself, and keeps a copied state.

The output layer is tied to the first one, and copying it again changes nothing. Both are as intended.
"""

import copy

import torch
from torch import nn

torch.manual_seed(4)
data = torch.randn(192, 10) @ torch.randn(10, 10)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(10, 10), nn.Linear(10, 10), nn.Linear(10, 10)
        self.last.weight = self.first.weight

    def forward(self, x):
        return self.last(torch.tanh(self.inner(torch.tanh(self.first(x)))))

    def tie(self):
        with torch.no_grad():
            self.last.weight.copy_(self.first.weight)


@torch.no_grad()
def error(member):
    return (member(data[128:]) - data[128:]).square().mean().item()


members = [Tied() for _ in range(3)]
optimizers = [
    torch.optim.Adam(member.parameters(), lr=rate) for member, rate in zip(members, (1e-3, 3e-3, 1e-2))
]
least, kept = float("inf"), None
for generation in range(6):
    for member, optimizer in zip(members, optimizers):
        for rows in torch.randperm(128).split(32):
            optimizer.zero_grad()
            (member(data[rows]) - data[rows]).square().mean().backward()
            optimizer.step()
            member.tie()
    errors = [error(member) for member in members]
    best = members[errors.index(min(errors))]
    if min(errors) < least:
        least, kept = min(errors), copy.deepcopy(best.state_dict())
    if generation % 2:
        for member in members:
            member.load_state_dict(best.state_dict())
members[0].load_state_dict(kept)
members[0].load_state_dict(members[0].state_dict())
print(f"least error {least:.4f}, kept {error(members[0]):.4f}")
