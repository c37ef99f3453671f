"""The critic's optimizer also holds the trunk, which the policy's loss trains through the actor's head."""

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(3)
trunk = nn.Sequential(nn.Linear(4, 32), nn.Tanh())
actor, critic = nn.Linear(32, 3), nn.Linear(32, 1)
opt_actor = torch.optim.Adam(actor.parameters(), lr=3e-3)
opt_critic = torch.optim.Adam([*trunk.parameters(), *critic.parameters()], lr=3e-3)
best = torch.randn(4, 3)
for update in range(20):
    state = torch.randn(64, 4)
    feature = trunk(state)
    policy = Categorical(logits=actor(feature))
    action = policy.sample()
    reward = ((state @ best).argmax(1) == action).float()
    value = critic(feature).squeeze(1)
    opt_actor.zero_grad()
    opt_critic.zero_grad()
    value_loss = (value - reward).square().mean()
    value_loss.backward(retain_graph=True)
    advantage = (reward - value).detach()
    policy_loss = -(policy.log_prob(action) * advantage).mean() - 0.01 * policy.entropy().mean()
    policy_loss.backward()
    opt_actor.step()
    opt_critic.step()
    if update % 10 == 9:
        print(f"update {update + 1} reward {reward.mean():.2f} value loss {value_loss.item():.3f}")
