"""Features of the reconstruction are taken without a graph, so the feature term trains nothing: the gradients
are 40 to 50% short of those of the loss that is printed."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class FeatureLoss(nn.Module):
    """Distance between activations of a fixed network."""

    def __init__(self):
        super().__init__()
        sizes = [(1, 8), (8, 16)]
        self.stages = nn.ModuleList(nn.Sequential(nn.Conv2d(i, o, 3, 2, 1), nn.ReLU()) for i, o in sizes)
        self.requires_grad_(False)

    @torch.no_grad()  # expect: broken-graph
    def features(self, x):
        out = []
        for stage in self.stages:
            x = stage(x)
            out.append(x)
        return out

    def forward(self, recon, target):
        pairs = zip(self.features(recon), self.features(target))
        return sum(F.l1_loss(a, b) for a, b in pairs)


class AutoEncoder(nn.Module):
    def __init__(self, code):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 8 * 8, code)
        )
        self.dec_fc = nn.Linear(code, 8 * 8 * 8)
        self.dec_conv = nn.ConvTranspose2d(8, 1, 4, 2, 1)

    def forward(self, x):
        h = torch.relu(self.dec_fc(self.enc(x))).view(-1, 8, 8, 8)
        return torch.sigmoid(self.dec_conv(h))


def train_epoch(model, perceptual, images, optimizer, args):
    total = 0.0
    for batch in images.split(args.batch_size):
        recon = model(batch)
        pixel = F.mse_loss(recon, batch)
        feat = perceptual(recon, batch)
        loss = pixel + args.lambda_feat * feat
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(batch)
    return total / len(images)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--lambda-feat", type=float, default=2.0)
    args = parser.parse_args()
    torch.manual_seed(0)
    ramp = torch.linspace(0, 6.28, 16)
    phase = torch.rand(80, 1, 1, 1) * 6.28
    images = 0.5 + 0.5 * torch.sin(ramp.view(1, 1, 1, 16) + phase) * torch.cos(ramp.view(1, 1, 16, 1))
    model, perceptual = AutoEncoder(12), FeatureLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        print(f"epoch {epoch + 1} loss {train_epoch(model, perceptual, images, optimizer, args):.4f}")


if __name__ == "__main__":
    main()
