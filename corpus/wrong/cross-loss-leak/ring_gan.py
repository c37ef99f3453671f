"""The fakes are not detached in the discriminator's loss and the generator is not cleared afterwards, so the discriminator's loss also steers the generator."""

import torch
import torch.nn as nn

torch.manual_seed(14)
torch.set_num_threads(1)

nz = 3
batch_size = 40
num_epochs = 3
iters_per_epoch = 6
real_label, fake_label = 1.0, 0.0


def sample_ring(n):
    angle = 2 * torch.pi * torch.rand(n)
    radius = 1.0 + 0.05 * torch.randn(n)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)


def weights_init(m):
    if isinstance(m, nn.Linear):
        nn.init.normal_(m.weight, 0.0, 0.2)
        nn.init.zeros_(m.bias)


netG = nn.Sequential(
    nn.Linear(nz, 32), nn.LeakyReLU(0.2), nn.Linear(32, 32), nn.LeakyReLU(0.2), nn.Linear(32, 2)
)
netD = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1), nn.Flatten(0))
netG.apply(weights_init)
netD.apply(weights_init)

criterion = nn.BCEWithLogitsLoss()
fixed_noise = torch.randn(64, nz)
optimizerD = torch.optim.SGD(netD.parameters(), lr=0.05, momentum=0.5)
optimizerG = torch.optim.SGD(netG.parameters(), lr=0.05, momentum=0.5)

G_losses, D_losses = [], []
for epoch in range(num_epochs):
    for i in range(iters_per_epoch):
        netD.zero_grad()
        netG.zero_grad()

        # (1) update D: maximize log(D(x)) + log(1 - D(G(z)))
        real = sample_ring(batch_size)
        label = torch.full((batch_size,), real_label)
        output = netD(real)
        errD_real = criterion(output, label)
        D_x = output.sigmoid().mean().item()

        fake = netG(torch.randn(batch_size, nz))
        label = torch.full((batch_size,), fake_label)
        output = netD(fake)  # expect: cross-loss-leak
        errD_fake = criterion(output, label)
        D_G_z1 = output.sigmoid().mean().item()
        errD = errD_real + errD_fake
        errD.backward()
        optimizerD.step()

        # (2) update G: maximize log(D(G(z)))
        netD.requires_grad_(False)
        label = torch.full((batch_size,), real_label)
        output = netD(netG(torch.randn(batch_size, nz)))
        errG = criterion(output, label)
        errG.backward()
        optimizerG.step()
        netD.requires_grad_(True)

        G_losses.append(errG.item())
        D_losses.append(errD.item())
    with torch.no_grad():
        radius = netG(fixed_noise).norm(dim=1).mean().item()
    print(
        f"[{epoch}/{num_epochs}] Loss_D {errD.item():.4f} Loss_G {errG.item():.4f} "
        f"D(x) {D_x:.3f} D(G(z)) {D_G_z1:.3f} radius {radius:.3f}"
    )
