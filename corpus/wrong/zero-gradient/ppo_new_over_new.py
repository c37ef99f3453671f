"""PPO's ratio is that of the new log-probability to itself: it is 1, and its gradient cancels."""

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)


class ActorCritic(nn.Module):
    def __init__(self, obs=6, act=3):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs, 32), nn.Tanh())
        self.pi = nn.Linear(32, act)
        self.v = nn.Linear(32, 1)

    def forward(self, o):
        h = self.body(o)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


def rollout(ac, n=128):
    obs = torch.randn(n, 6)
    with torch.no_grad():
        dist, value = ac(obs)
        act = dist.sample()
        logp = dist.log_prob(act)
        ret = (act == obs[:, :3].argmax(1)).float()
    return obs, act, logp, ret - value, ret


def update(ac, opt, data, epochs=3, clip=0.2):
    obs, act, old_logp, adv, ret = data
    adv = (adv - adv.mean()) / (adv.std() + 1e-8)
    for _ in range(epochs):
        for idx in torch.randperm(len(obs)).split(32):
            dist, value = ac(obs[idx])
            logp = dist.log_prob(act[idx])
            ratio = torch.exp(logp - dist.log_prob(act[idx]))  # expect: zero-gradient
            surr = torch.min(ratio * adv[idx], ratio.clamp(1 - clip, 1 + clip) * adv[idx])
            pi_loss = -surr.mean()
            v_loss = 0.5 * (value - ret[idx]).pow(2).mean()
            loss = pi_loss + v_loss - 0.01 * dist.entropy().mean()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(ac.parameters(), 0.5)
            opt.step()


ac = ActorCritic()
opt = torch.optim.Adam(ac.parameters(), lr=3e-4)
for it in range(2):
    update(ac, opt, rollout(ac))
