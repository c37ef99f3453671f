"""The discriminator, which has a batch norm, is frozen during several generator steps and trained again after them."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(8)
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
critic = nn.Sequential(nn.Linear(2, 16), nn.BatchNorm1d(16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
for_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
for_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
ones, zeros = torch.ones(32, 1), torch.zeros(32, 1)

for round in range(6):
    critic.requires_grad_(True)
    for _ in range(2):
        real = torch.randn(32, 2) + 2
        fake = generator(torch.randn(32, 4)).detach()
        loss = F.binary_cross_entropy_with_logits(critic(real), ones)
        loss = loss + F.binary_cross_entropy_with_logits(critic(fake), zeros)
        for_critic.zero_grad()
        loss.backward()
        for_critic.step()
    critic.requires_grad_(False)
    for _ in range(3):
        fooled = F.binary_cross_entropy_with_logits(critic(generator(torch.randn(32, 4))), ones)
        for_generator.zero_grad()
        fooled.backward()
        for_generator.step()
print(f"{loss.item():.4f} {fooled.item():.4f}")
