"""Both the policy's and the value's optimizer were given the shared trunk, so every update moves the trunk twice."""

import torch
import torch.nn as nn
from torch.distributions import Categorical


class CliffEnv:
    """5x3 grid; the bottom row is a cliff, the goal is the right end of it."""

    def reset(self):
        self.r, self.c, self.t = 2, 0, 0
        return self._obs()

    def _obs(self):
        o = torch.zeros(15)
        o[self.r * 5 + self.c] = 1.0
        return o

    def step(self, a):
        dr, dc = [(-1, 0), (1, 0), (0, -1), (0, 1)][a]
        self.r = min(2, max(0, self.r + dr))
        self.c = min(4, max(0, self.c + dc))
        self.t += 1
        if self.r == 2 and self.c == 4:
            return self._obs(), 1.0, True
        if self.r == 2 and 0 < self.c < 4:
            return self._obs(), -1.0, True
        return self._obs(), -0.02, self.t >= 25


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(15, 32), nn.Tanh())
        self.pi = nn.Linear(32, 4)
        self.v = nn.Linear(32, 1)

    def forward(self, obs):
        h = self.trunk(obs)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


class A2C:
    def __init__(self, env, gamma=0.98, value_coef=0.5, entropy_coef=0.01):
        self.env, self.gamma = env, gamma
        self.value_coef, self.entropy_coef = value_coef, entropy_coef
        self.net = ActorCritic()
        trunk = list(self.net.trunk.parameters())
        self.policy_opt = torch.optim.Adam(
            trunk + list(self.net.pi.parameters()), lr=3e-3
        )  # expect: param-in-multiple-optimizers
        self.value_opt = torch.optim.Adam(
            trunk + list(self.net.v.parameters()), lr=1e-2
        )  # expect: param-in-multiple-optimizers

    def play(self):
        obs, done, steps = self.env.reset(), False, []
        while not done:
            with torch.no_grad():
                dist, _ = self.net(obs)
            a = dist.sample()
            nxt, r, done = self.env.step(a.item())
            steps.append((obs, a, r))
            obs = nxt
        g, targets = 0.0, []
        for _, _, r in reversed(steps):
            g = r + self.gamma * g
            targets.append(g)
        obs, acts, rews = zip(*steps)
        return torch.stack(obs), torch.stack(acts), torch.tensor(targets[::-1]), sum(rews)

    def update(self, obs, acts, targets):
        dist, value = self.net(obs)
        advantage = targets - value.detach()
        policy_loss = -(dist.log_prob(acts) * advantage).mean() - self.entropy_coef * dist.entropy().mean()
        value_loss = (value - targets).pow(2).mean()
        loss = policy_loss + self.value_coef * value_loss
        self.policy_opt.zero_grad()
        self.value_opt.zero_grad()
        loss.backward()
        self.policy_opt.step()
        self.value_opt.step()
        return loss.item()


def main():
    torch.manual_seed(19)
    torch.set_num_threads(1)
    agent = A2C(CliffEnv())
    for epoch in range(2):
        totals, losses = [], []
        for _ in range(12):
            obs, acts, targets, total = agent.play()
            losses.append(agent.update(obs, acts, targets))
            totals.append(total)
        print(f"epoch {epoch} return {sum(totals) / 12:.3f} loss {sum(losses) / 12:.3f}")


if __name__ == "__main__":
    main()
