"""The ramp of the rotation loss is an integer division, so its head only ever receives zeros: its loss stays at
1.41 instead of 1.14, and the other gradients are off by a quarter and more."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F

parser = argparse.ArgumentParser(description="classification with a rotation task on the side")
parser.add_argument("--epochs", default=3, type=int)
parser.add_argument("--lr", default=0.05, type=float)
parser.add_argument("--batch", default=24, type=int)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 12, 3, stride=2)
        self.classify = nn.Linear(12 * 9, 5)
        self.rotation = nn.Linear(12 * 9, 4)

    def features(self, x):
        return F.relu(self.conv(x)).flatten(1)


def rotated(x):
    turns = torch.randint(4, (len(x),))
    return torch.stack([torch.rot90(image, int(k), (1, 2)) for image, k in zip(x, turns)]), turns


def train(net, images, labels, optimizer, epoch, args):
    for x, y in zip(images.split(args.batch), labels.split(args.batch)):
        x_rot, turns = rotated(x)
        ce = F.cross_entropy(net.classify(net.features(x)), y)
        rot = F.cross_entropy(net.rotation(net.features(x_rot)), turns)
        loss = ce + (epoch // args.epochs) * rot  # expect: zero-gradient
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    print(f"[{epoch}] ce={ce.item():.3f} rot={rot.item():.3f}")


def main():
    args = parser.parse_args()
    torch.manual_seed(8)
    templates = torch.randn(5, 1, 8, 8)
    labels = torch.arange(96) % 5
    images = templates[labels] + 0.5 * torch.randn(96, 1, 8, 8)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), args.lr, momentum=0.9)
    for epoch in range(1, args.epochs):
        train(net, images, labels, optimizer, epoch, args)


main()
