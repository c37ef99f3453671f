"""The generator's optimizer is stepped directly instead of through the scaler, so it applies gradients that are still multiplied by the loss scale."""

import torch
import torch.nn as nn

torch.manual_seed(77)
torch.set_num_threads(1)

LATENT = 4
BATCH = 48


def real_batch(n):
    centre = torch.randint(0, 4, (n,))
    angle = centre * torch.pi / 2
    return torch.stack([angle.cos(), angle.sin()], 1) * 0.7 + 0.05 * torch.randn(n, 2)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(LATENT, 32), nn.LeakyReLU(0.2), nn.Linear(32, 2), nn.Tanh())

    def forward(self, z):
        return self.net(z)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def forward(self, x):
        return self.net(x).squeeze(1)


class GAN:
    def __init__(self):
        self.G, self.D = Generator(), Discriminator()
        self.opt_g = torch.optim.Adam(self.G.parameters(), lr=2e-3, betas=(0.5, 0.999), weight_decay=1e-2)
        self.opt_d = torch.optim.Adam(self.D.parameters(), lr=2e-3, betas=(0.5, 0.999), weight_decay=1e-2)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        self.bce = nn.BCEWithLogitsLoss()

    def autocast(self):
        return torch.autocast("cpu", dtype=torch.bfloat16)

    def discriminator_step(self, real):
        z = torch.randn(len(real), LATENT)
        with torch.no_grad():
            fake = self.G(z)
        self.opt_d.zero_grad()
        with self.autocast():
            on_real, on_fake = self.D(real), self.D(fake)
            loss = self.bce(on_real, torch.ones_like(on_real)) + self.bce(on_fake, torch.zeros_like(on_fake))
        self.scaler.scale(loss).backward()
        self.scaler.step(self.opt_d)
        return loss.item()

    def generator_step(self, n):
        self.D.requires_grad_(False)
        self.opt_g.zero_grad()
        with self.autocast():
            verdict = self.D(self.G(torch.randn(n, LATENT)))
            loss = self.bce(verdict, torch.ones_like(verdict))
        self.scaler.scale(loss).backward()
        self.opt_g.step()  # expect: amp-scaler-misuse
        self.D.requires_grad_(True)
        return loss.item()

    def fit(self, epochs, steps):
        for epoch in range(epochs):
            for _ in range(steps):
                d = self.discriminator_step(real_batch(BATCH))
                g = self.generator_step(BATCH)
                self.scaler.update()
            print(f"epoch {epoch} D {d:.3f} G {g:.3f} scale {self.scaler.get_scale():g}")


if __name__ == "__main__":
    gan = GAN()
    gan.fit(epochs=3, steps=8)
