"""The same rollouts are used for several epochs of updates, with log-probabilities and advantages that carry no graph."""

import torch
import torch.nn as nn
from torch.distributions import Categorical


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 32), nn.Tanh())
        self.pi = nn.Linear(32, 3)
        self.v = nn.Linear(32, 1)

    def forward(self, obs):
        h = self.body(obs)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


@torch.no_grad()
def rollout(model, n_env=16, horizon=8):
    pos, goal = torch.rand(n_env), torch.rand(n_env)
    buf = {k: [] for k in ("obs", "act", "logp", "val", "rew")}
    for _ in range(horizon):
        obs = torch.stack([pos, goal], 1)
        dist, val = model(obs)
        act = dist.sample()
        pos = (pos + 0.1 * (act - 1)).clamp(0, 1)
        for k, v in zip(buf, (obs, act, dist.log_prob(act), val, -(pos - goal).abs())):
            buf[k].append(v)
    last = model(torch.stack([pos, goal], 1))[1]
    adv, gae = [], torch.zeros(n_env)
    for t in reversed(range(horizon)):
        nxt = last if t == horizon - 1 else buf["val"][t + 1]
        gae = buf["rew"][t] + 0.95 * nxt - buf["val"][t] + 0.95 * 0.9 * gae
        adv.insert(0, gae)
    flat = {k: torch.cat(v) for k, v in buf.items()}
    flat["adv"] = torch.cat(adv)
    flat["ret"] = flat["adv"] + flat["val"]
    return flat


torch.manual_seed(0)
model = ActorCritic()
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
for update in range(3):
    data = rollout(model)
    adv = (data["adv"] - data["adv"].mean()) / (data["adv"].std() + 1e-8)
    for _ in range(3):
        for idx in torch.randperm(len(adv)).split(32):
            dist, val = model(data["obs"][idx])
            ratio = (dist.log_prob(data["act"][idx]) - data["logp"][idx]).exp()
            surr = torch.min(ratio * adv[idx], ratio.clamp(0.8, 1.2) * adv[idx])
            loss = -surr.mean() + 0.5 * (val - data["ret"][idx]).pow(2).mean() - 0.01 * dist.entropy().mean()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            opt.step()
    print(f"update {update} mean reward {data['rew'].mean().item():.4f} loss {loss.item():.4f}")
