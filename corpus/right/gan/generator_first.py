"""The generator is trained first and its loss fills the discriminator's gradients too, but these are cleared right before
the discriminator's own backward."""

import argparse

import torch
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--n_epochs", type=int, default=2)
parser.add_argument("--batch_size", type=int, default=25)
parser.add_argument("--latent_dim", type=int, default=4)
parser.add_argument("--lr", type=float, default=0.002)
opt = parser.parse_args()
torch.manual_seed(12)


class Conditional(nn.Module):
    def __init__(self, n_in, n_out, n_classes=3):
        super().__init__()
        self.label_emb = nn.Embedding(n_classes, n_classes)
        self.model = nn.Sequential(nn.Linear(n_in + n_classes, 32), nn.LeakyReLU(0.2), nn.Linear(32, n_out))

    def forward(self, x, labels):
        return self.model(torch.cat((self.label_emb(labels), x), -1))


generator, discriminator = Conditional(opt.latent_dim, 2), Conditional(2, 1)
loss_fn = nn.MSELoss()
optimizer_G = torch.optim.Adam(generator.parameters(), lr=opt.lr, betas=(0.5, 0.999))
optimizer_D = torch.optim.Adam(discriminator.parameters(), lr=opt.lr, betas=(0.5, 0.999))
labels = torch.randint(0, 3, (250,))
points = torch.tensor([[0.0, 2.0], [2.0, 0.0], [-2.0, 0.0]])[labels] + 0.2 * torch.randn(250, 2)

for epoch in range(opt.n_epochs):
    for idx in torch.randperm(250).split(opt.batch_size):
        real, lab = points[idx], labels[idx]
        valid, fake = torch.ones(len(idx), 1), torch.zeros(len(idx), 1)

        optimizer_G.zero_grad()
        gen_labels = torch.randint(0, 3, (len(idx),))
        gen = generator(torch.randn(len(idx), opt.latent_dim), gen_labels)
        g_loss = loss_fn(discriminator(gen, gen_labels), valid)
        g_loss.backward()
        optimizer_G.step()

        optimizer_D.zero_grad()
        d_loss = (
            loss_fn(discriminator(real, lab), valid) + loss_fn(discriminator(gen.detach(), gen_labels), fake)
        ) / 2
        d_loss.backward()
        optimizer_D.step()
    print(f"[Epoch {epoch}] D {d_loss.item():.4f} G {g_loss.item():.4f}")
