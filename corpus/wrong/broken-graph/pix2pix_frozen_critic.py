"""The adversarial term is made of a detached image, and the discriminator is frozen meanwhile: it is a constant."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)
gen = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))
disc = nn.Sequential(nn.Conv2d(2, 8, 3, stride=2), nn.LeakyReLU(0.2), nn.Conv2d(8, 1, 3))
g_optim = torch.optim.Adam(gen.parameters(), 2e-4, betas=(0.5, 0.999))
d_optim = torch.optim.Adam(disc.parameters(), 2e-4, betas=(0.5, 0.999))
bce = nn.BCEWithLogitsLoss()


def set_grad(net, flag):
    for p in net.parameters():
        p.requires_grad = flag


for step in range(8):
    a = torch.rand(4, 1, 16, 16)
    b = 1 - a
    fake_b = gen(a)

    set_grad(disc, True)
    d_optim.zero_grad()
    pred_fake = disc(torch.cat((a, fake_b.detach()), 1))
    pred_real = disc(torch.cat((a, b), 1))
    loss_d = 0.5 * (bce(pred_fake, torch.zeros_like(pred_fake)) + bce(pred_real, torch.ones_like(pred_real)))
    loss_d.backward()
    d_optim.step()

    set_grad(disc, False)
    g_optim.zero_grad()
    pred = disc(torch.cat((a, fake_b.detach()), 1))  # expect: broken-graph
    loss_gan = bce(pred, torch.ones_like(pred))
    loss_l1 = F.l1_loss(fake_b, b) * 100
    (loss_gan + loss_l1).backward()
    g_optim.step()
print(loss_l1.item())
