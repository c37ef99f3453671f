"""DDPG on a spring: the actor's loss is back-propagated first, and the critic's gradients are cleared after it."""

import torch
from torch import nn

torch.manual_seed(0)
actor = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1), nn.Tanh())
critic = nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 1))
optimizers = {
    "actor": torch.optim.SGD(actor.parameters(), lr=1e-2),
    "critic": torch.optim.SGD(critic.parameters(), lr=5e-3),
}


def pull(state, force):
    position, speed = state.unbind(1)
    speed = speed + 0.1 * (force.squeeze(1) - position)
    return torch.stack([position + 0.1 * speed, speed], 1)


def value(state, force):
    return critic(torch.cat([state, force], 1)).squeeze(1)


for episode in range(40):
    state, force = torch.randn(32, 2), 2 * torch.rand(32, 1) - 1
    after = pull(state, force)
    with torch.no_grad():
        target = -after.square().sum(1) + 0.9 * value(after, actor(after))
    losses = {
        "actor": -value(state, actor(state)).mean(),
        "critic": nn.functional.mse_loss(value(state, force), target),
    }
    for name, loss in losses.items():
        optimizers[name].zero_grad()
        loss.backward()
    for optimizer in optimizers.values():
        optimizer.step()
print(losses["critic"].item())
