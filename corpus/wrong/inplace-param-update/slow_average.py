"""The average of the weights is made in the wrong direction: every other step moves the network a little way back to where
it began, and the target network that gives the next values never changes."""

import torch
from torch import nn

RATE = 0.02


def polyak(target, source, rate):
    with torch.no_grad():
        for t, s in zip(target.parameters(), source.parameters()):
            t.copy_(rate * s + (1 - rate) * t)  # expect: inplace-param-update


def chain(n):
    """A walk over 6 fields, which pays at the right end."""
    s = torch.randint(6, (n,))
    a = torch.randint(2, (n,))
    s2 = (s + 2 * a - 1).clamp(0, 5)
    return nn.functional.one_hot(s, 6).float(), a, (s2 == 5).float(), nn.functional.one_hot(s2, 6).float()


torch.manual_seed(11)
values = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 2))
delayed = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 2))
delayed.load_state_dict(values.state_dict())
optimizer = torch.optim.RMSprop(values.parameters(), lr=2e-3)
for update in range(24):
    s, a, r, s2 = chain(48)
    with torch.no_grad():
        goal = r + 0.9 * delayed(s2).amax(1)
    q = values(s).gather(1, a[:, None])[:, 0]
    loss = nn.functional.huber_loss(q, goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if update % 2:
        polyak(values, delayed, RATE)
print(f"loss {loss.item():.5f} value at the end {values(torch.eye(6))[4].max().item():.3f}")
