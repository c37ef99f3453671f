"""Two backwards go into one discriminator step, and the generator's step leaves gradients in the discriminator, which are
cleared at the top of the next iteration."""

import torch
import torch.nn as nn

torch.manual_seed(999)
nz = 5
netG = nn.Sequential(nn.Linear(nz, 32), nn.ReLU(True), nn.Linear(32, 10))
netD = nn.Sequential(nn.Linear(10, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1), nn.Sigmoid())
criterion = nn.BCELoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=0.002, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=0.002, betas=(0.5, 0.999))
data = torch.cumsum(torch.randn(320, 10) * 0.3, 1)
dataloader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)

for epoch in range(2):
    for real in dataloader:
        # train with real
        netD.zero_grad()
        label = torch.full((len(real),), 1.0)
        output = netD(real).view(-1)
        errD_real = criterion(output, label)
        errD_real.backward()
        D_x = output.mean().item()

        # train with fake
        fake = netG(torch.randn(len(real), nz))
        label.fill_(0.0)
        output = netD(fake.detach()).view(-1)
        errD_fake = criterion(output, label)
        errD_fake.backward()
        optimizerD.step()

        # generator: the same fakes, labelled as real
        netG.zero_grad()
        label.fill_(1.0)
        output = netD(fake).view(-1)
        errG = criterion(output, label)
        errG.backward()
        optimizerG.step()
    print(f"[{epoch}] Loss_D {(errD_real + errD_fake).item():.4f} Loss_G {errG.item():.4f} D(x) {D_x:.4f}")
