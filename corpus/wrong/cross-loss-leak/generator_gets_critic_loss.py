"""The discriminator's loss runs on into the generator, whose gradients were cleared before it: the two nearly
cancel, and 3 to 11% of its gradient are left."""

import torch
import torch.nn as nn

torch.manual_seed(1)
nz, ngf, batch_size = 10, 32, 32


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.Linear(nz, ngf), nn.BatchNorm1d(ngf), nn.ReLU(True), nn.Linear(ngf, 16), nn.Tanh()
        )

    def forward(self, z):
        return self.main(z)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def forward(self, x):
        return self.main(x).view(-1)


netG, netD = Generator(), Discriminator()
criterion = nn.BCEWithLogitsLoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-3, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-3, betas=(0.5, 0.999))

grid = torch.linspace(0, 6.2832, 16)
waves = torch.sin(grid[None, :] + 6.2832 * torch.rand(192, 1))
dataloader = torch.utils.data.DataLoader(waves, batch_size=batch_size, shuffle=True, drop_last=True)

for epoch in range(2):
    for i, data in enumerate(dataloader):
        optimizerD.zero_grad()
        optimizerG.zero_grad()
        ones, zeros = torch.ones(len(data)), torch.zeros(len(data))
        fake = netG(torch.randn(len(data), nz))

        errD = criterion(netD(data), ones) + criterion(netD(fake), zeros)  # expect: cross-loss-leak
        errD.backward(retain_graph=True)
        errG = criterion(netD(fake), ones)
        errG.backward(inputs=list(netG.parameters()))

        optimizerD.step()
        optimizerG.step()
    print("[%d/2] Loss_D: %.4f Loss_G: %.4f" % (epoch + 1, errD.item(), errG.item()))
