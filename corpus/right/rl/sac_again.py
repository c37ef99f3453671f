"""Three optimizers take turns, terms are detached from each other's losses, and the critics are switched off while the
policy's gradient runs through them."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Normal

torch.manual_seed(5)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, s):
        mean, log_std = self.net(s).chunk(2, -1)
        dist = Normal(mean, log_std.clamp(-4, 1).exp())
        u = dist.rsample()
        a = torch.tanh(u)
        logp = dist.log_prob(u) - torch.log(1 - a.pow(2) + 1e-6)
        return a, logp.squeeze(-1)


def make_q():
    return nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 1))


policy, q1, q2 = Policy(), make_q(), make_q()
q1_t, q2_t = copy.deepcopy(q1).requires_grad_(False), copy.deepcopy(q2).requires_grad_(False)
log_alpha = torch.tensor(-1.0, requires_grad=True)
q_params = [*q1.parameters(), *q2.parameters()]
pi_opt = torch.optim.Adam(policy.parameters(), lr=3e-3)
q_opt = torch.optim.Adam(q_params, lr=3e-3)
a_opt = torch.optim.Adam([log_alpha], lr=1e-2)

S = torch.rand(600, 2) * 2 - 1
A = torch.rand(600, 1) * 2 - 1
S2 = torch.stack([(S[:, 0] + 0.3 * A[:, 0]).clamp(-1, 1), S[:, 1]], 1)
R = -(S2[:, 0] - S2[:, 1]).abs()

for epoch in range(2):
    for idx in torch.randperm(600).split(60):
        s, a, r, s2 = S[idx], A[idx], R[idx], S2[idx]
        alpha = log_alpha.exp().detach()
        with torch.no_grad():
            a2, logp2 = policy(s2)
            x2 = torch.cat([s2, a2], 1)
            backup = r + 0.9 * (torch.min(q1_t(x2), q2_t(x2)).squeeze(1) - alpha * logp2)
        x = torch.cat([s, a], 1)
        q_loss = F.mse_loss(q1(x).squeeze(1), backup) + F.mse_loss(q2(x).squeeze(1), backup)
        q_opt.zero_grad()
        q_loss.backward()
        q_opt.step()

        for p in q_params:
            p.requires_grad = False
        pi, logp = policy(s)
        xp = torch.cat([s, pi], 1)
        pi_loss = (alpha * logp - torch.min(q1(xp), q2(xp)).squeeze(1)).mean()
        pi_opt.zero_grad()
        pi_loss.backward()
        pi_opt.step()
        for p in q_params:
            p.requires_grad = True

        a_loss = -(log_alpha * (logp.detach() - 1.0)).mean()
        a_opt.zero_grad()
        a_loss.backward()
        a_opt.step()
        with torch.no_grad():
            for q, qt in ((q1, q1_t), (q2, q2_t)):
                for p, pt in zip(q.parameters(), qt.parameters()):
                    pt.lerp_(p, 0.02)
    print(f"epoch {epoch} q {q_loss.item():.4f} pi {pi_loss.item():.4f} alpha {alpha.item():.4f}")
