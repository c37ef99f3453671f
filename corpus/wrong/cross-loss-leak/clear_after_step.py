"""The generator's loss fills the discriminator's gradients after they were cleared for the next round: from the
second step on its gradients are off by 4 to 7 times their size."""

import torch
from torch import nn, optim


def mlp(*sizes):
    layers = []
    for a, b in zip(sizes[:-1], sizes[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class HingeGAN:
    def __init__(self, latent=6, dim=2, lr=1e-3):
        self.latent = latent
        self.gen, self.disc = mlp(latent, 48, 48, dim), mlp(dim, 48, 48, 1)
        self.opt_gen = optim.Adam(self.gen.parameters(), lr=lr, betas=(0.0, 0.9))
        self.opt_disc = optim.Adam(self.disc.parameters(), lr=2 * lr, betas=(0.0, 0.9))

    def disc_step(self, real):
        with torch.no_grad():
            fake = self.gen(torch.randn(len(real), self.latent))
        loss = torch.relu(1 - self.disc(real)).mean() + torch.relu(1 + self.disc(fake)).mean()
        loss.backward()
        self.opt_disc.step()
        self.opt_disc.zero_grad()  # expect: cross-loss-leak
        return loss.item()

    def gen_step(self, n):
        loss = -self.disc(self.gen(torch.randn(n, self.latent))).mean()
        loss.backward()
        self.opt_gen.step()
        self.opt_gen.zero_grad()
        return loss.item()


def spiral(n):
    r = torch.rand(n)
    return torch.stack([r * torch.cos(9 * r), r * torch.sin(9 * r)], 1) + 0.02 * torch.randn(n, 2)


def main():
    torch.manual_seed(66)
    gan = HingeGAN()
    for it in range(10):
        d = gan.disc_step(spiral(64))
        g = gan.gen_step(64)
        if it % 5 == 4:
            print(f"it {it + 1}: disc {d:.4f} gen {g:.4f}")


main()
