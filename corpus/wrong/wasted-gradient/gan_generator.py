"""In the discriminator's step the fakes keep their graph, so gradients of the generator are computed and cleared again
before its own step."""

import torch
import torch.nn as nn

torch.manual_seed(6)


def weights_init(m):
    if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(m.weight, 0.0, 0.05)


netG = nn.Sequential(
    nn.ConvTranspose2d(8, 16, 4),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.ConvTranspose2d(16, 1, 4, stride=2, padding=1),
    nn.Tanh(),
).apply(weights_init)
netD = nn.Sequential(
    nn.Conv2d(1, 16, 4, stride=2, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(16, 1, 4), nn.Flatten(0)
).apply(weights_init)

rows = torch.randint(1, 7, (200,))
data = -torch.ones(200, 1, 8, 8)
data[torch.arange(200), 0, rows] = 1.0

criterion = nn.BCEWithLogitsLoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=0.001, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=0.001, betas=(0.5, 0.999))

for epoch in range(2):
    for i in range(0, 200, 25):
        # (1) Update D network: maximize log(D(x)) + log(1 - D(G(z)))
        netD.zero_grad()
        real = data[i : i + 25]
        label = torch.full((25,), 1.0)
        errD_real = criterion(netD(real), label)
        errD_real.backward()
        fake = netG(torch.randn(25, 8, 1, 1))  # expect: wasted-gradient
        errD_fake = criterion(netD(fake), torch.zeros(25))  # expect: wasted-gradient
        errD_fake.backward()
        optimizerD.step()

        # (2) Update G network: maximize log(D(G(z)))
        netG.zero_grad()
        netD.requires_grad_(False)
        errG = criterion(netD(netG(torch.randn(25, 8, 1, 1))), label)
        errG.backward()
        optimizerG.step()
        netD.requires_grad_(True)
    print(f"[{epoch}/2] Loss_D: {(errD_real + errD_fake).item():.4f} Loss_G: {errG.item():.4f}")
