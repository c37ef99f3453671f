"""The advantage of 32 samples is a (32, 32) matrix without a graph: each sample is compared with each other one, which
gives the leave-one-out baseline up to a factor."""

import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(5, 24), nn.Tanh(), nn.Linear(24, 4))
opt = torch.optim.Adam(policy.parameters(), lr=1e-2)
prompt, liked = torch.randn(1, 5), torch.randn(4)
for step in range(12):
    dist = torch.distributions.Categorical(logits=policy(prompt).expand(32, 4))
    answers = dist.sample()
    rewards = liked[answers] + 0.1 * torch.randn(32)
    with torch.no_grad():
        column = rewards.reshape(32, 1)
        advantages = rewards - column
    loss = -(dist.log_prob(answers) * advantages).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"step {step} reward {rewards.mean():.3f}")
