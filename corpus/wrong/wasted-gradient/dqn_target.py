"""The target network is run with a graph, and fills up with gradients that nothing reads or clears: 18 kB of
them, of norm 0.60 in the end, and twice the memory saved for backward."""

import random
from collections import deque

import torch
import torch.nn as nn
import torch.optim as optim

random.seed(0)
torch.manual_seed(0)

GAMMA, LR, BATCH, SYNC_EVERY, EPS = 0.95, 1e-3, 32, 8, 0.2
SIZE, ACTIONS = 5, 4
MOVES = [(0, 1), (0, -1), (1, 0), (-1, 0)]


def make_q():
    return nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, ACTIONS))


def env_step(state, action):
    row = min(max(state[0] + MOVES[action][0], 0), SIZE - 1)
    col = min(max(state[1] + MOVES[action][1], 0), SIZE - 1)
    done = (row, col) == (SIZE - 1, SIZE - 1)
    return (row, col), (1.0 if done else -0.02), done


q_network, target_network = make_q(), make_q()
target_network.load_state_dict(q_network.state_dict())
optimizer = optim.Adam(q_network.parameters(), lr=LR)
buffer = deque(maxlen=500)

state, updates = (0, 0), 0
for step in range(160):
    if random.random() < EPS or step < 40:
        action = random.randrange(ACTIONS)
    else:
        with torch.no_grad():
            action = q_network(torch.tensor(state, dtype=torch.float32) / SIZE).argmax().item()
    following, reward, done = env_step(state, action)
    buffer.append((state, action, reward, following, done))
    state = (0, 0) if done else following

    if len(buffer) >= BATCH and step % 8 == 0:
        s, a, r, s2, d = zip(*random.sample(buffer, BATCH))
        s, s2 = torch.tensor(s).float() / SIZE, torch.tensor(s2).float() / SIZE
        next_value = target_network(s2).max(dim=1).values  # expect: wasted-gradient
        td_target = torch.tensor(r) + GAMMA * next_value * (1 - torch.tensor(d).float())
        old_value = q_network(s).gather(1, torch.tensor(a).unsqueeze(1)).squeeze(1)
        loss = nn.functional.mse_loss(td_target, old_value)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        updates += 1
        if updates % SYNC_EVERY == 0:
            target_network.load_state_dict(q_network.state_dict())
            print(f"step={step} td_loss={loss.item():.5f}")
