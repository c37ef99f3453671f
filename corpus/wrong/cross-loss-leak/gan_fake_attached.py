"""The discriminator's loss on fakes also back-propagates into the generator, and as both are cleared at the top only,
the generator's step contains the discriminator's wish to tell fakes apart."""

import torch
import torch.nn as nn

torch.manual_seed(0)
nz, batch_size, n_epochs = 8, 32, 2

generator = nn.Sequential(nn.Linear(nz, 32), nn.ReLU(), nn.Linear(32, 16), nn.Tanh())
discriminator = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
optimizer_G = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
optimizer_D = torch.optim.Adam(discriminator.parameters(), lr=2e-3, betas=(0.5, 0.999))
adversarial_loss = nn.BCEWithLogitsLoss()

phase = torch.rand(320, 1) * 6.28
waves = torch.sin(torch.linspace(0, 6.28, 16) + phase) * 0.9
dataloader = torch.utils.data.DataLoader(waves, batch_size=batch_size, shuffle=True)

for epoch in range(n_epochs):
    for i, real in enumerate(dataloader):
        valid = torch.ones(len(real), 1)
        fake_label = torch.zeros(len(real), 1)

        optimizer_D.zero_grad()
        optimizer_G.zero_grad()

        # ---- Train Discriminator
        gen = generator(torch.randn(len(real), nz))
        real_loss = adversarial_loss(discriminator(real), valid)
        fake_loss = adversarial_loss(discriminator(gen), fake_label)  # expect: cross-loss-leak
        d_loss = (real_loss + fake_loss) / 2
        d_loss.backward()
        optimizer_D.step()

        # ---- Train Generator
        gen = generator(torch.randn(len(real), nz))
        g_loss = adversarial_loss(discriminator(gen), valid)
        g_loss.backward()  # expect: cross-loss-leak
        optimizer_G.step()
    print(f"[Epoch {epoch}/{n_epochs}] [D loss: {d_loss.item():.4f}] [G loss: {g_loss.item():.4f}]")
