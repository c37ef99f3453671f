"""backward() is told to keep a graph that is used once, so two batches' activations are held at a time: 2.2 MB
at the peak in place of 1.1."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class UNetish(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU())
        self.mid = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU())
        self.dec = nn.Conv2d(48, classes, 3, padding=1)

    def forward(self, x):
        skip = self.enc(x)
        deep = F.interpolate(self.mid(skip), scale_factor=2.0)
        return self.dec(torch.cat((skip, deep), dim=1))


def dice_loss(logits, target):
    probs = logits.softmax(1)
    one_hot = F.one_hot(target, logits.size(1)).permute(0, 3, 1, 2)
    overlap = (probs * one_hot).sum((0, 2, 3))
    return 1 - (2 * overlap / (probs + one_hot).sum((0, 2, 3))).mean()


class Segmenter:
    def __init__(self, lr=3e-3):
        self.net = UNetish()
        self.optimizer = torch.optim.NAdam(self.net.parameters(), lr=lr)

    def optimize_parameters(self, image, target):
        self.logits = self.net(image)
        self.loss = F.cross_entropy(self.logits, target) + dice_loss(self.logits, target)
        self.optimizer.zero_grad()
        self.loss.backward(retain_graph=True)  # expect: graph-retention
        self.optimizer.step()


def batches(n, size=20):
    for _ in range(n):
        target = torch.randint(3, (6, 1, size // 4, size // 4)).float()
        target = F.interpolate(target, scale_factor=4).long().squeeze(1)
        yield torch.eye(3)[target].permute(0, 3, 1, 2) + 0.6 * torch.randn(6, 3, size, size), target


if __name__ == "__main__":
    torch.manual_seed(27)
    model = Segmenter()
    for epoch in range(2):
        for image, target in batches(4):
            model.optimize_parameters(image, target)
        accuracy = (model.logits.argmax(1) == target).float().mean()
        print(f"epoch {epoch} loss {model.loss.item():.4f} pixels {accuracy.item():.3f}")
