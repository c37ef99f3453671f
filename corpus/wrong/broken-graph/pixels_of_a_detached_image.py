"""The reconstruction term of an image-to-image GAN is computed from a detached image: it counts in the
printed loss, and trains nothing."""

import torch
from torch import nn

torch.manual_seed(13)


class Translator(nn.Module):
    def __init__(self, lambda_recon=20.0):
        super().__init__()
        self.gen = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 6))
        self.disc = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 1))
        self.adversarial_criterion = nn.BCEWithLogitsLoss()
        self.recon_criterion = nn.L1Loss()
        self.lambda_recon = lambda_recon

    def forward(self, x):
        return self.gen(x)

    def gen_step(self, fake, real, condition):
        logits = self.disc(torch.cat([fake, condition], 1))
        adversarial = self.adversarial_criterion(logits, torch.ones_like(logits))
        recon = self.recon_criterion(fake.detach(), real)  # expect: broken-graph
        return adversarial + self.lambda_recon * recon

    def disc_step(self, fake, real, condition):
        wrong = self.disc(torch.cat([fake, condition], 1))
        right = self.disc(torch.cat([real, condition], 1))
        loss = self.adversarial_criterion(wrong, torch.zeros_like(wrong))
        return (loss + self.adversarial_criterion(right, torch.ones_like(right))) / 2


model = Translator()
opt_g = torch.optim.Adam(model.gen.parameters(), lr=2e-3)
opt_d = torch.optim.Adam(model.disc.parameters(), lr=2e-3)
for step in range(16):
    condition = torch.randn(32, 6)
    real = condition.sin()
    fake = model(condition)
    model.disc.requires_grad_(True)
    d_loss = model.disc_step(fake.detach(), real, condition)
    opt_d.zero_grad()
    d_loss.backward()
    opt_d.step()
    model.disc.requires_grad_(False)
    g_loss = model.gen_step(fake, real, condition)
    opt_g.zero_grad()
    g_loss.backward()
    opt_g.step()
    if step % 8 == 7:
        print(f"step {step} g {g_loss.item():.4f} d {d_loss.item():.4f}")
