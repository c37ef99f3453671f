# One variable for the optimizers of several networks. Each steps before the next one is constructed. Then only the
# last network's optimizer steps, on the error of all predictions together.
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(64, 5)
y = x.sum(1, keepdim=True).sin()
members = []
for _ in range(3):
    member = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(member.parameters(), lr=0.01)
    for _ in range(6):
        optimizer.zero_grad()
        nn.functional.mse_loss(member(x), y).backward()
        optimizer.step()
    members.append(member)

for _ in range(6):
    with torch.no_grad():
        others = sum(each(x) for each in members[:-1])
    optimizer.zero_grad()
    nn.functional.mse_loss((others + members[-1](x)) / 3, y).backward()
    optimizer.step()
