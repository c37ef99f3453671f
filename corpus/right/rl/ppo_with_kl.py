"""PPO: in the first epoch of each rollout the ratio is 1 and the KL to the old policy is zero."""

import torch
from torch import nn

torch.manual_seed(0)
pi = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
opt = torch.optim.Adam(pi.parameters(), lr=1e-2)
for rollout in range(5):
    s, adv = torch.randn(64, 4), torch.randn(64)
    with torch.no_grad():
        dist = torch.distributions.Categorical(logits=pi(s))
        a = dist.sample()
        old = dist.log_prob(a)
        old_logits = pi(s).log_softmax(1)
    for epoch in range(3):
        logits = pi(s).log_softmax(1)
        ratio = (logits.gather(1, a[:, None]).squeeze(1) - old).exp()
        kl = (old_logits.exp() * (old_logits - logits)).sum(1).mean()
        loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean() + 0.1 * kl
        opt.zero_grad()
        loss.backward()
        opt.step()
