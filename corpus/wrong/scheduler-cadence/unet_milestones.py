"""Milestones given in epochs are counted in micro-batches, eight to an epoch: the rate is 1/100 from the
second update on, and the weights go 1/14 as far.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import MultiStepLR


def conv(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1), nn.ReLU())


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc1, self.enc2 = conv(1, 8), conv(8, 16)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.dec = conv(16, 8)
        self.final = nn.Conv2d(8, 1, 1)

    def forward(self, x):
        e1 = self.enc1(x)
        e2 = self.enc2(F.max_pool2d(e1, 2))
        return self.final(self.dec(torch.cat([self.up(e2), e1], dim=1)))


def dice_loss(logits, target, eps=1.0):
    p = logits.sigmoid().flatten(1)
    t = target.flatten(1)
    inter = (p * t).sum(1)
    return (1 - (2 * inter + eps) / (p.sum(1) + t.sum(1) + eps)).mean()


def load(n):
    mask = torch.zeros(n, 1, 12, 12)
    for m, (r, c) in zip(mask, torch.randint(0, 8, (n, 2)).tolist()):
        m[:, r : r + 4, c : c + 4] = 1
    return mask + 0.3 * torch.randn_like(mask), mask


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--lr", type=float, default=0.2)
    p.add_argument("--milestones", type=int, nargs="*", default=[2, 3], help="epochs after which lr is cut")
    p.add_argument("--accum", type=int, default=2)
    return p.parse_args()


def main():
    args = parse()
    torch.manual_seed(44)
    model = UNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    scheduler = MultiStepLR(optimizer, milestones=args.milestones, gamma=0.1)
    images, masks = load(32)
    for epoch in range(args.epochs):
        total = 0.0
        for k, rows in enumerate(torch.randperm(32).split(4)):
            loss = dice_loss(model(images[rows]), masks[rows])
            (loss / args.accum).backward()
            total += loss.item()
            if k % args.accum == args.accum - 1:
                optimizer.step()
                optimizer.zero_grad()
            scheduler.step()  # expect: scheduler-cadence
        print(f"epoch {epoch} dice loss {total / 8:.4f}")


if __name__ == "__main__":
    main()
