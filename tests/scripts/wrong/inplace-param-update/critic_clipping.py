"""The critic's weights are clipped between its forward and its backward: gradients of neither network: at first
the gradients are off by half their size, later by several times it."""

import torch
import torch.nn as nn

torch.manual_seed(7)
clip_value, n_critic, latent_dim, batch_size = 0.05, 2, 8, 32

generator = nn.Sequential(nn.Linear(latent_dim, 32), nn.LeakyReLU(0.2), nn.Linear(32, 2))
discriminator = nn.Sequential(
    nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)
)
optimizer_G = torch.optim.RMSprop(generator.parameters(), lr=1e-3)
optimizer_D = torch.optim.RMSprop(discriminator.parameters(), lr=1e-2)

angle = torch.rand(256) * 6.2832
dataset = torch.stack([angle.cos(), angle.sin()], 1) + 0.02 * torch.randn(256, 2)
dataloader = torch.utils.data.DataLoader(dataset, batch_size=batch_size, shuffle=True)

for epoch in range(2):
    for i, real in enumerate(dataloader):
        optimizer_D.zero_grad()
        z = torch.randn(len(real), latent_dim)
        fake = generator(z).detach()
        loss_D = -torch.mean(discriminator(real)) + torch.mean(discriminator(fake))
        for p in discriminator.parameters():
            p.data.clamp_(-clip_value, clip_value)  # expect: inplace-param-update
        loss_D.backward()
        optimizer_D.step()

        if i % n_critic == 0:
            optimizer_G.zero_grad()
            loss_G = -torch.mean(discriminator(generator(z)))
            loss_G.backward()
            optimizer_G.step()
    print("[Epoch %d] [D loss: %f] [G loss: %f]" % (epoch, loss_D.item(), loss_G.item()))
