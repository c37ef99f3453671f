"""GRPO with one update per rollout: ratio exp(logp - logp.detach()) is 1; the KL to a frozen reference starts at 0."""

import copy
import torch
from torch import nn

torch.manual_seed(0)
pi = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
ref = copy.deepcopy(pi).requires_grad_(False)
opt = torch.optim.Adam(pi.parameters(), lr=1e-2)
for rollout in range(12):
    s, adv = torch.randn(64, 4), torch.randn(64)
    a = torch.randint(3, (64, 1))
    logp = pi(s).log_softmax(1).gather(1, a).squeeze(1)
    with torch.no_grad():
        ref_logp = ref(s).log_softmax(1).gather(1, a).squeeze(1)
    ratio = (logp - logp.detach()).exp()
    kl = ((ref_logp - logp).exp() - (ref_logp - logp) - 1).mean()
    loss = -(ratio * adv).mean() + 0.04 * kl
    opt.zero_grad()
    loss.backward()
    opt.step()
