"""The command-line option for the entropy's weight has no effect: only the value loss got its weight."""

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--ent-coef", type=float, default=0.01)
parser.add_argument("--vf-coef", type=float, default=0.5)
args = parser.parse_args([])
policy = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 4))
value = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam([*policy.parameters(), *value.parameters()], lr=3e-3)
for update in range(12):
    states = torch.randn(64, 6)
    dist = Categorical(logits=policy(states))
    actions = dist.sample()
    returns = (actions == states[:, :4].argmax(1)).float()
    baseline = value(states).squeeze(1)
    advantage = (returns - baseline).detach()
    policy_loss = -(dist.log_prob(actions) * advantage).mean()
    value_loss = (returns - baseline).pow(2).mean()
    entropy = dist.entropy().mean()
    loss = policy_loss + args.vf_coef * value_loss  # expect: term-left-out
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{update}: {loss.item():.3f} entropy {entropy.item():.3f}")
