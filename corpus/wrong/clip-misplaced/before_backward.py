"""Clipping runs right after the gradients are cleared and before backward, so that what is applied is never clipped."""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F


class QNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1 = nn.Linear(3, 32)
        self.l2 = nn.Linear(32, 2)

    def forward(self, s):
        return self.l2(F.relu(self.l1(s)))


def simulate(n):
    """Random transitions of a noisy pole: state, action, reward, next state, done."""
    memory = []
    s = [0.0, 0.0, 1.0]
    for _ in range(n):
        a = random.randrange(2)
        v = 0.9 * s[1] + (0.2 if a else -0.2) + random.gauss(0, 0.05)
        p = s[0] + v
        done = abs(p) > 1.5
        memory.append((s, a, 100.0 * (1 - abs(p)), [p, v, 1.0], float(done)))
        s = [0.0, 0.0, 1.0] if done else [p, v, 1.0]
    return memory


random.seed(2)
torch.manual_seed(2)
memory = simulate(500)
policy_net, target_net = QNet(), QNet()
target_net.load_state_dict(policy_net.state_dict())
optimizer = torch.optim.SGD(policy_net.parameters(), lr=1e-3)
GAMMA, BATCH = 0.95, 32

for epoch in range(2):
    for _ in range(12):
        s, a, r, s2, d = (torch.tensor(col) for col in zip(*random.sample(memory, BATCH)))
        q = policy_net(s).gather(1, a[:, None]).squeeze(1)
        with torch.no_grad():
            target = r + GAMMA * (1 - d) * target_net(s2).max(1).values
        loss = F.mse_loss(q, target)

        optimizer.zero_grad()
        nn.utils.clip_grad_norm_(policy_net.parameters(), 1.0)  # expect: clip-misplaced
        loss.backward()
        optimizer.step()
    target_net.load_state_dict(policy_net.state_dict())
    print(f"epoch {epoch} td loss {loss.item():.2f} q {q.mean().item():.2f}")
