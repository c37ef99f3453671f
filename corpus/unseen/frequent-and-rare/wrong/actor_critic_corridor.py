"""Actor-critic on a corridor. The advantage in the policy loss still carries the critic's graph,
so the policy term also pushes the value estimates."""
import torch
import torch.nn as nn
from torch.distributions import Categorical

torch.manual_seed(6)
LENGTH, GAMMA = 6, 0.95


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(LENGTH, 32), nn.Tanh())
        self.pi = nn.Linear(32, 2)
        self.v = nn.Linear(32, 1)

    def forward(self, s):
        h = self.trunk(s)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


def encode(pos):
    s = torch.zeros(LENGTH)
    s[pos] = 1.0
    return s


def rollout(net, max_steps=15):
    pos, rewards, logps, values, ents = 0, [], [], [], []
    for _ in range(max_steps):
        dist, value = net(encode(pos))
        action = dist.sample()
        logps.append(dist.log_prob(action))
        ents.append(dist.entropy())
        values.append(value)
        pos = max(0, pos + (1 if action.item() else -1))
        if pos == LENGTH - 1:
            rewards.append(1.0)
            break
        rewards.append(-0.05)
    return rewards, torch.stack(logps), torch.stack(values), torch.stack(ents)


def discounted(rewards):
    out, g = [], 0.0
    for r in reversed(rewards):
        g = r + GAMMA * g
        out.append(g)
    return torch.tensor(out[::-1])


net = ActorCritic()
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
scores = []

for episode in range(30):
    rewards, logps, values, ents = rollout(net)
    returns = discounted(rewards)
    advantage = returns - values  # expect: advantage not detached
    policy_loss = -(logps * advantage).mean()
    value_loss = (returns - values).pow(2).mean()
    loss = policy_loss + 0.5 * value_loss - 0.01 * ents.mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    scores.append(sum(rewards))

print(f"mean score, first ten: {sum(scores[:10]) / 10:.3f}")
print(f"mean score, last ten:  {sum(scores[-10:]) / 10:.3f}")
