"""Looks like three losses that reach too far: the actor's loss passes through both critics, whose leftovers
are cleared first, and the temperature is a bare leaf with its own optimizer."""

import torch
from torch import nn, optim
from torch.distributions import Normal
from torch.nn import functional as F

torch.manual_seed(3)


def mlp(i, o):
    return nn.Sequential(nn.Linear(i, 32), nn.ReLU(), nn.Linear(32, o))


obs_dim, act_dim, gamma, tau = 3, 1, 0.97, 0.05
actor = mlp(obs_dim, 2 * act_dim)
qf1, qf2 = mlp(obs_dim + act_dim, 1), mlp(obs_dim + act_dim, 1)
qf1_target, qf2_target = mlp(obs_dim + act_dim, 1), mlp(obs_dim + act_dim, 1)
qf1_target.load_state_dict(qf1.state_dict())
qf2_target.load_state_dict(qf2.state_dict())
q_optimizer = optim.Adam([*qf1.parameters(), *qf2.parameters()], lr=1e-3)
actor_optimizer = optim.Adam(list(actor.parameters()), lr=3e-4)
target_entropy = -float(act_dim)
log_alpha = torch.zeros(1, requires_grad=True)
alpha = log_alpha.exp().item()
a_optimizer = optim.Adam([log_alpha], lr=1e-3)


def get_action(obs):
    mean, log_std = actor(obs).chunk(2, dim=-1)
    dist = Normal(mean, log_std.clamp(-5, 2).exp())
    u = dist.rsample()
    a = torch.tanh(u)
    return a, (dist.log_prob(u) - torch.log(1 - a.pow(2) + 1e-6)).sum(-1, keepdim=True)


def q(net, obs, a):
    return net(torch.cat([obs, a], -1))


buffer_obs = torch.randn(256, obs_dim)
buffer_act = torch.rand(256, act_dim) * 2 - 1
buffer_next = 0.9 * buffer_obs + 0.2 * buffer_act
buffer_rew = -buffer_next.pow(2).sum(-1, keepdim=True)

for global_step in range(12):
    idx = torch.randint(256, (64,))
    obs, act, nxt, rew = buffer_obs[idx], buffer_act[idx], buffer_next[idx], buffer_rew[idx]
    with torch.no_grad():
        next_a, next_logp = get_action(nxt)
        min_q_next = torch.min(q(qf1_target, nxt, next_a), q(qf2_target, nxt, next_a)) - alpha * next_logp
        target = rew + gamma * min_q_next
    qf_loss = F.mse_loss(q(qf1, obs, act), target) + F.mse_loss(q(qf2, obs, act), target)
    q_optimizer.zero_grad()
    qf_loss.backward()
    q_optimizer.step()

    if global_step % 2 == 0:  # delayed policy updates
        for _ in range(2):
            pi, logp = get_action(obs)
            actor_loss = (alpha * logp - torch.min(q(qf1, obs, pi), q(qf2, obs, pi))).mean()
            actor_optimizer.zero_grad()
            actor_loss.backward()
            actor_optimizer.step()

            with torch.no_grad():
                _, logp = get_action(obs)
            alpha_loss = (-log_alpha.exp() * (logp + target_entropy)).mean()
            a_optimizer.zero_grad()
            alpha_loss.backward()
            a_optimizer.step()
            alpha = log_alpha.exp().item()

    with torch.no_grad():
        for net, tgt in ((qf1, qf1_target), (qf2, qf2_target)):
            for p, tp in zip(net.parameters(), tgt.parameters()):
                tp.lerp_(p, tau)

print(f"qf {qf_loss.item():.3f} actor {actor_loss.item():.3f} alpha {alpha:.4f}")
