"""A Wasserstein critic is clipped and averaged by lines that create new tensors, so neither takes effect."""

import copy

import torch
from torch import nn

torch.manual_seed(0)
critic = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
smooth = copy.deepcopy(critic)
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
opt_c = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
opt_g = torch.optim.RMSprop(generator.parameters(), lr=1e-3)


def average():
    for name, value in critic.state_dict().items():
        smooth.state_dict()[name] = 0.9 * smooth.state_dict()[name] + 0.1 * value  # expect: ineffective-step


for step in range(20):
    real = torch.randn(32, 2) + 2
    fake = generator(torch.randn(32, 4)).detach()
    opt_c.zero_grad()
    (critic(fake).mean() - critic(real).mean()).backward()
    opt_c.step()
    for p in critic.parameters():
        p.data.clamp(-0.05, 0.05)  # expect: ineffective-step
    average()
    if step % 4 == 3:
        opt_g.zero_grad()
        (-critic(generator(torch.randn(32, 4))).mean()).backward()
        opt_g.step()
with torch.no_grad():
    print(f"{smooth(real).mean().item():.4f}")
