"""The discriminator is cleared again after its loss on real samples, of which no step sees anything: its
gradients are 3.4 to 4.0 times as large as the two together and turned away.
"""

import torch
import torch.nn as nn

torch.manual_seed(999)

nz, batch_size, num_epochs, lr = 4, 32, 2, 2e-3


def real_batch():
    angle = torch.rand(batch_size) * 2 * torch.pi
    ring = torch.stack([angle.cos(), angle.sin()], dim=1)
    return ring + 0.05 * torch.randn(batch_size, 2)


netG = nn.Sequential(nn.Linear(nz, 32), nn.ReLU(True), nn.Linear(32, 2))
netD = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2, inplace=True), nn.Linear(32, 1))

criterion = nn.BCEWithLogitsLoss()
real_label = 1.0
fake_label = 0.0

optimizerD = torch.optim.Adam(netD.parameters(), lr=lr, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=lr, betas=(0.5, 0.999))

for epoch in range(num_epochs):
    for i in range(5):
        # (1) Update D network: maximize log(D(x)) + log(1 - D(G(z)))
        # train with real
        netD.zero_grad()
        label = torch.full((batch_size,), real_label)
        output = netD(real_batch()).view(-1)
        errD_real = criterion(output, label)
        errD_real.backward()

        # train with fake
        netD.zero_grad()  # expect: zero-grad-misplaced
        noise = torch.randn(batch_size, nz)
        fake = netG(noise)
        label.fill_(fake_label)
        output = netD(fake.detach()).view(-1)
        errD_fake = criterion(output, label)
        errD_fake.backward()
        optimizerD.step()

        # (2) Update G network: maximize log(D(G(z)))
        netG.zero_grad()
        label.fill_(real_label)
        output = netD(fake).view(-1)
        errG = criterion(output, label)
        errG.backward()
        optimizerG.step()

    print(f"[{epoch}/{num_epochs}] Loss_D: {(errD_real + errD_fake).item():.4f} Loss_G: {errG.item():.4f}")
