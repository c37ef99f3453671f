"""Looks like a leak and a waste: the generator is trained first, its backward fills the discriminator too,
and optimizer_D.zero_grad drops that before the discriminator's own loss."""

import argparse

import numpy as np
import torch
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--n_epochs", type=int, default=2)
parser.add_argument("--batch_size", type=int, default=20)
parser.add_argument("--lr", type=float, default=0.002)
parser.add_argument("--b1", type=float, default=0.5)
parser.add_argument("--n_classes", type=int, default=3)
parser.add_argument("--latent_dim", type=int, default=6)
opt = parser.parse_args()

np.random.seed(0)
torch.manual_seed(0)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.label_emb = nn.Embedding(opt.n_classes, opt.n_classes)
        self.model = nn.Sequential(
            nn.Linear(opt.latent_dim + opt.n_classes, 32), nn.LeakyReLU(0.2, inplace=True), nn.Linear(32, 5)
        )

    def forward(self, noise, labels):
        return self.model(torch.cat((self.label_emb(labels), noise), -1))


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.label_embedding = nn.Embedding(opt.n_classes, opt.n_classes)
        self.model = nn.Sequential(nn.Linear(5 + opt.n_classes, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def forward(self, x, labels):
        return self.model(torch.cat((x, self.label_embedding(labels)), -1))


adversarial_loss = torch.nn.MSELoss()
generator, discriminator = Generator(), Discriminator()
optimizer_G = torch.optim.Adam(generator.parameters(), lr=opt.lr, betas=(opt.b1, 0.999))
optimizer_D = torch.optim.Adam(discriminator.parameters(), lr=opt.lr, betas=(opt.b1, 0.999))

all_labels = torch.randint(opt.n_classes, (80,))
all_data = torch.randn(80, 5) * 0.3 + all_labels[:, None]

for epoch in range(opt.n_epochs):
    for k in range(0, 80, opt.batch_size):
        real, labels = all_data[k : k + opt.batch_size], all_labels[k : k + opt.batch_size]
        valid, fake = torch.ones(len(real), 1), torch.zeros(len(real), 1)

        # -----------------
        #  Train Generator
        # -----------------
        optimizer_G.zero_grad()
        z = torch.from_numpy(np.random.normal(0, 1, (len(real), opt.latent_dim))).float()
        gen_labels = torch.from_numpy(np.random.randint(0, opt.n_classes, len(real)))
        gen_data = generator(z, gen_labels)
        g_loss = adversarial_loss(discriminator(gen_data, gen_labels), valid)
        g_loss.backward()
        optimizer_G.step()

        # ---------------------
        #  Train Discriminator
        # ---------------------
        optimizer_D.zero_grad()
        d_real_loss = adversarial_loss(discriminator(real, labels), valid)
        d_fake_loss = adversarial_loss(discriminator(gen_data.detach(), gen_labels), fake)
        d_loss = (d_real_loss + d_fake_loss) / 2
        d_loss.backward()
        optimizer_D.step()

    print("[Epoch %d/%d] [D loss: %f] [G loss: %f]" % (epoch, opt.n_epochs, d_loss.item(), g_loss.item()))
