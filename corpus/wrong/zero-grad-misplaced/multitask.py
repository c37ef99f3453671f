"""The gradients of the segmentation loss are cleared before the depth loss is back-propagated, so only the depth loss
trains the network."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class SharedNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU()
        )
        self.seg_head = nn.Conv2d(width, 2, 1)
        self.depth_head = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.seg_head(h), self.depth_head(h)


def scene(n, g):
    yy, xx = torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij")
    centre = torch.rand(n, 2, generator=g) * 7
    dist = ((yy - centre[:, :1, None]) ** 2 + (xx - centre[:, 1:, None]) ** 2).sqrt()
    mask = (dist < 2.5).long()
    depth = (1 - dist / 10).unsqueeze(1)
    image = mask.unsqueeze(1) + 0.5 * depth + 0.1 * torch.randn(n, 1, 8, 8, generator=g)
    return image, mask, depth


def main(args):
    torch.manual_seed(args.seed)
    g = torch.Generator().manual_seed(args.seed)
    model = SharedNet(args.width)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        for it in range(args.iters):
            image, mask, depth = scene(16, g)
            seg, dep = model(image)

            optimizer.zero_grad()
            seg_loss = F.cross_entropy(seg, mask)
            seg_loss.backward(retain_graph=True)

            optimizer.zero_grad()  # expect: zero-grad-misplaced
            depth_loss = F.l1_loss(dep, depth)
            depth_loss.backward()

            optimizer.step()
        print(f"epoch {epoch} seg {seg_loss.item():.4f} depth {depth_loss.item():.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--iters", type=int, default=8)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
