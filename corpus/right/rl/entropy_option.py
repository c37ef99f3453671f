"""The entropy is shown, and is in the loss with the weight of a command-line option."""

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--ent-coef", type=float, default=0.01)
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
    loss = policy_loss + value_loss - args.ent_coef * entropy
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{update}: {loss.item():.3f} entropy {entropy.item():.3f}")
