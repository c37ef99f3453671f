"""Looks like frozen parameters under a live optimizer: the discriminator's requires_grad is off while the
generator is trained, and on again for its own step."""

import torch
import torch.nn as nn


class Pix2Pix:
    def __init__(self, lambda_l1=10.0):
        self.lambda_l1 = lambda_l1
        self.netG = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.InstanceNorm2d(8), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1)
        )
        self.netD = nn.Sequential(nn.Conv2d(2, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(8, 1, 3, padding=1))
        self.criterionGAN = nn.MSELoss()
        self.criterionL1 = nn.L1Loss()
        self.optimizer_G = torch.optim.Adam(self.netG.parameters(), lr=2e-3, betas=(0.5, 0.999))
        self.optimizer_D = torch.optim.Adam(self.netD.parameters(), lr=2e-3, betas=(0.5, 0.999))

    @staticmethod
    def set_requires_grad(net, requires_grad):
        for param in net.parameters():
            param.requires_grad = requires_grad

    def forward(self, real_a, real_b):
        self.real_a, self.real_b = real_a, real_b
        self.fake_b = self.netG(real_a)

    def backward_D(self):
        pred_fake = self.netD(torch.cat((self.real_a, self.fake_b), 1).detach())
        pred_real = self.netD(torch.cat((self.real_a, self.real_b), 1))
        fake = self.criterionGAN(pred_fake, torch.zeros_like(pred_fake))
        real = self.criterionGAN(pred_real, torch.ones_like(pred_real))
        self.loss_D = (fake + real) * 0.5
        self.loss_D.backward()

    def backward_G(self):
        pred_fake = self.netD(torch.cat((self.real_a, self.fake_b), 1))
        loss_gan = self.criterionGAN(pred_fake, torch.ones_like(pred_fake))
        self.loss_G = loss_gan + self.lambda_l1 * self.criterionL1(self.fake_b, self.real_b)
        self.loss_G.backward()

    def optimize_parameters(self, real_a, real_b):
        self.forward(real_a, real_b)
        # update D
        self.set_requires_grad(self.netD, True)
        self.optimizer_D.zero_grad()
        self.backward_D()
        self.optimizer_D.step()
        # update G
        self.set_requires_grad(self.netD, False)
        self.optimizer_G.zero_grad()
        self.backward_G()
        self.optimizer_G.step()


if __name__ == "__main__":
    torch.manual_seed(0)
    model = Pix2Pix()
    edges = (torch.rand(24, 1, 10, 10) > 0.8).float()
    photos = nn.functional.avg_pool2d(edges, 3, 1, 1)
    for epoch in range(2):
        for a, b in zip(edges.split(6), photos.split(6)):
            model.optimize_parameters(a, b)
        print(f"epoch {epoch} D {model.loss_D.item():.3f} G {model.loss_G.item():.3f}")
