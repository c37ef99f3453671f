"""The running loss is a tensor that links the graphs of all the batches of the epoch: 86 nodes after 8 batches,
one chain that only ends with the epoch."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class AverageMeter:
    def __init__(self):
        self.sum, self.count = 0, 0

    def update(self, value, n=1):
        self.sum += value * n  # expect: graph-retention
        self.count += n

    @property
    def avg(self):
        return self.sum / self.count


class Denoise(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv1d(1, 16, 7, padding=3)
        self.conv2 = nn.Conv1d(16, 16, 7, padding=3)
        self.conv3 = nn.Conv1d(16, 1, 7, padding=3)

    def forward(self, x):
        return self.conv3(F.relu(self.conv2(F.relu(self.conv1(x)))))


def train(model, optimizer, clean, args):
    meter = AverageMeter()
    for batch in clean[torch.randperm(len(clean))].split(args.batch_size):
        noisy = batch + args.sigma * torch.randn_like(batch)
        loss = F.l1_loss(model(noisy), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.update(loss, len(batch))
    return meter


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--sigma", type=float, default=0.3)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(92)
    time = torch.linspace(0, 12, 96)
    clean = torch.sin(time * (0.5 + torch.rand(128, 1)) + 6 * torch.rand(128, 1)).unsqueeze(1)
    model = Denoise()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        meter = train(model, optimizer, clean, args)
        print(f"epoch {epoch}: l1 {meter.avg.item():.4f} over {meter.count} signals")


if __name__ == "__main__":
    main()
