"""The network gives a distribution of returns. Its target is projected onto the same support without a graph, by the
frozen copy, and the loss is a cross-entropy that is written out by hand."""

import random
from collections import deque

import torch
from torch import nn

ATOMS, ACTIONS, GAMMA = 11, 2, 0.9
support = torch.linspace(-1, 1, ATOMS)
gap = support[1] - support[0]


def network():
    return nn.Sequential(
        nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, ACTIONS * ATOMS), nn.Unflatten(1, (ACTIONS, ATOMS))
    )


@torch.no_grad()
def target_distribution(target, reward, following, done):
    following = target(following).softmax(-1)
    best = (following * support).sum(-1).argmax(-1)
    chosen = following[torch.arange(len(best)), best]
    moved = (reward[:, None] + GAMMA * (1 - done[:, None]) * support).clamp(-1, 1)
    place = ((moved + 1) / gap).clamp(0, ATOMS - 1)
    low, high = place.floor().long(), place.ceil().long()
    low, high = low - ((high > 0) & (low == high)).long(), high
    projected = torch.zeros_like(chosen)
    projected.scatter_add_(1, low, chosen * (high - place))
    projected.scatter_add_(1, high, chosen * (place - low))
    return projected


random.seed(0)
torch.manual_seed(0)
online, target = network(), network()
target.load_state_dict(online.state_dict())
target.requires_grad_(False)
optimizer = torch.optim.Adam(online.parameters(), lr=2e-3)
memory = deque(maxlen=200)
state = torch.zeros(3)
for step in range(60):
    with torch.no_grad():
        values = (online(state[None]).softmax(-1) * support).sum(-1)
    action = random.randrange(ACTIONS) if random.random() < 0.3 else int(values.argmax())
    following = 0.8 * state + 0.2 * torch.randn(3) + 0.1 * (2 * action - 1)
    reward, done = float(following.sum() > 0) - 0.5, float(step % 15 == 14)
    memory.append((state, action, reward, following, done))
    state = torch.zeros(3) if done else following
    if step < 20 or step % 2:
        continue
    rows = [
        torch.stack([torch.as_tensor(each) for each in column]) for column in zip(*random.sample(memory, 16))
    ]
    states, actions, rewards, next_states, ends = rows
    wanted = target_distribution(target, rewards.float(), next_states, ends.float())
    log_p = online(states)[torch.arange(16), actions].log_softmax(-1)
    loss = -(wanted * log_p).sum(-1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        target.load_state_dict(online.state_dict())
print(f"{loss.item():.3f}")
