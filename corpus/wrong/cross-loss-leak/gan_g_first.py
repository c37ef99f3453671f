"""The generator goes first and leaves its gradients in the discriminator, which was cleared before: the discriminator's
step also makes fakes look real."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class Generator(nn.Module):
    def __init__(self, nz, n_out):
        super().__init__()
        self.fc = nn.Linear(nz, 24)
        self.bn = nn.BatchNorm1d(24)
        self.out = nn.Linear(24, n_out)

    def forward(self, z):
        return self.out(F.relu(self.bn(self.fc(z))))


class Discriminator(nn.Module):
    def __init__(self, n_in):
        super().__init__()
        self.fc = nn.Linear(n_in, 24)
        self.out = nn.Linear(24, 1)

    def forward(self, x):
        return self.out(F.leaky_relu(self.fc(x), 0.2))


class GANTrainer:
    def __init__(self, args):
        self.args = args
        self.G, self.D = Generator(args.nz, 3), Discriminator(3)
        self.opt_g = torch.optim.SGD(self.G.parameters(), lr=args.lr)
        self.opt_d = torch.optim.SGD(self.D.parameters(), lr=args.lr)

    def train_step(self, real):
        self.opt_g.zero_grad()
        self.opt_d.zero_grad()  # expect: cross-loss-leak

        fake = self.G(torch.randn(len(real), self.args.nz))
        loss_g = F.softplus(-self.D(fake)).mean()
        loss_g.backward()
        self.opt_g.step()

        loss_d = F.softplus(-self.D(real)).mean() + F.softplus(self.D(fake.detach())).mean()
        loss_d.backward()  # expect: cross-loss-leak
        self.opt_d.step()
        return loss_g.item(), loss_d.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nz", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(3)
    t = torch.rand(256) * 6.28
    helix = torch.stack([t.cos(), t.sin(), t / 3], 1)
    trainer = GANTrainer(args)
    for epoch in range(args.epochs):
        for idx in torch.randperm(256).split(32):
            g, d = trainer.train_step(helix[idx])
        print(f"epoch {epoch} loss_g {g:.3f} loss_d {d:.3f}")


main()
