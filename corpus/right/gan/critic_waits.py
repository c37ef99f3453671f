"""A critic takes nine steps for each of the generator's, whose batch norms move meanwhile: it waits for its turn."""

import torch
from torch import nn

torch.manual_seed(0)
gen = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
critic = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
opt_g = torch.optim.RMSprop(gen.parameters(), lr=5e-4)
opt_c = torch.optim.RMSprop(critic.parameters(), lr=5e-4)
for step in range(40):
    real = torch.randn(16, 2) * 0.5 + 1
    with torch.no_grad():
        fake = gen(torch.randn(16, 4))
    opt_c.zero_grad()
    (critic(fake).mean() - critic(real).mean()).backward()
    opt_c.step()
    for p in critic.parameters():
        p.data.clamp_(-0.05, 0.05)
    if step % 10 == 0:
        opt_g.zero_grad()
        loss = -critic(gen(torch.randn(16, 4))).mean()
        loss.backward()
        opt_g.step()
print(f"loss {loss.item():.4f}")
