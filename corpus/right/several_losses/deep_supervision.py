"""Looks like one loss added several times: every decoder level has its own output and its own weight, and
at test time only the last is used."""

import torch
import torch.nn.functional as F
from torch import nn


def double_conv(i, o):
    return nn.Sequential(
        nn.Conv2d(i, o, 3, padding=1, bias=False),
        nn.BatchNorm2d(o),
        nn.ReLU(),
        nn.Conv2d(o, o, 3, padding=1),
        nn.ReLU(),
    )


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.d1, self.d2, self.d3 = double_conv(1, 8), double_conv(8, 12), double_conv(12, 16)
        self.u2, self.u1 = double_conv(16 + 12, 12), double_conv(12 + 8, 8)
        self.out3, self.out2, self.out1 = nn.Conv2d(16, 1, 1), nn.Conv2d(12, 1, 1), nn.Conv2d(8, 1, 1)

    def forward(self, x):
        c1 = self.d1(x)
        c2 = self.d2(F.max_pool2d(c1, 2))
        c3 = self.d3(F.max_pool2d(c2, 2))
        e2 = self.u2(torch.cat([F.interpolate(c3, scale_factor=2), c2], 1))
        e1 = self.u1(torch.cat([F.interpolate(e2, scale_factor=2), c1], 1))
        if not self.training:
            return self.out1(e1)
        return self.out1(e1), self.out2(e2), self.out3(c3)


def dice_bce(logits, mask):
    p = logits.sigmoid()
    dice = 1 - (2 * (p * mask).sum() + 1) / (p.sum() + mask.sum() + 1)
    return dice + F.binary_cross_entropy_with_logits(logits, mask)


def supervised(outputs, mask, weights=(1.0, 0.5, 0.25)):
    loss = 0
    for w, out in zip(weights, outputs):
        small = F.interpolate(mask, size=out.shape[-2:], mode="nearest")
        loss = loss + w * dice_bce(out, small)
    return loss / sum(weights)


def discs(n, size=16):
    c = torch.rand(n, 2, 1, 1) * size
    r = 3 + 3 * torch.rand(n, 1, 1)
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    mask = (((xx - c[:, 0]) ** 2 + (yy - c[:, 1]) ** 2) < r**2).float()[:, None]
    return mask + 0.4 * torch.randn_like(mask), mask


torch.manual_seed(5)
img, mask = discs(40)
net = UNet()
opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
for epoch in range(2):
    net.train()
    for i in range(0, 32, 8):
        opt.zero_grad()
        loss = supervised(net(img[i : i + 8]), mask[i : i + 8])
        loss.backward()
        opt.step()
    net.eval()
    with torch.no_grad():
        val = dice_bce(net(img[32:]), mask[32:])
    print(f"epoch {epoch} train {loss.item():.4f} val {val.item():.4f}")
