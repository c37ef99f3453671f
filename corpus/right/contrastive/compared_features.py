"""Comparisons in which both sides have a gradient on purpose: feature matching, and a model of the next state."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(7)
real_data = torch.randn(512, 6) @ torch.randn(6, 6)

# A generator that matches the mean features of a critic. Another optimizer trains the critic.
generator = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 6))
features, score = nn.Sequential(nn.Linear(6, 16), nn.ReLU()), nn.Linear(16, 1)
of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
of_critic = torch.optim.Adam([*features.parameters(), *score.parameters()], lr=1e-3)
for step in range(10):
    real = real_data[torch.randint(512, (32,))]
    fake = generator(torch.randn(32, 3))
    scores = score(features(torch.cat([real, fake.detach()]))).squeeze(1)
    of_critic.zero_grad()
    F.binary_cross_entropy_with_logits(scores, torch.cat([torch.ones(32), torch.zeros(32)])).backward()
    of_critic.step()
    of_generator.zero_grad()
    F.mse_loss(features(fake).mean(0), features(real).mean(0)).backward()
    of_generator.step()

# A world model: the predicted reward keeps the states apart.
encoder, dynamics, reward = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 1)
optimizer = torch.optim.Adam([*encoder.parameters(), *dynamics.parameters(), *reward.parameters()], lr=1e-3)
for step in range(10):
    state, following = real_data[torch.randint(512, (2, 32))]
    predicted = dynamics(encoder(state))
    loss = F.mse_loss(predicted, encoder(following)) + F.mse_loss(
        reward(predicted).squeeze(1), following.sum(1)
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
