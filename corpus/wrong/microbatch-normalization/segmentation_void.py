"""Each micro-batch is averaged over its own labelled pixels, which are from 7 to 135, and weighs as much as
any other: the first gradient is off by 45 %.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class FCN(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 12, 3, stride=2, padding=1), nn.ReLU())
        self.mid = nn.Sequential(nn.Conv2d(12, 12, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(12, classes, 2, stride=2)

    def forward(self, x):
        x = self.down(x)
        return self.up(x + self.mid(x))


def masked_loss(logits, target, labelled):
    per_pixel = F.cross_entropy(logits, target, reduction="none")
    return (per_pixel * labelled).sum() / labelled.sum()  # expect: microbatch-normalization


def crowd_labels(n, size=12):
    """Annotators leave out what they are not sure about, some of them nearly all."""
    g = torch.Generator().manual_seed(21)
    target = torch.randint(0, 3, (n, size // 4, size // 4), generator=g)
    target = target.repeat_interleave(4, 1).repeat_interleave(4, 2)
    care = torch.tensor([0.9, 0.15, 0.6, 0.05]).repeat(n // 4)
    labelled = (torch.rand(n, size, size, generator=g) < care.view(-1, 1, 1)).float()
    images = F.one_hot(target, 3).permute(0, 3, 1, 2).float() + 0.4 * torch.randn(
        n, 3, size, size, generator=g
    )
    return images, target, labelled


def fit(model, images, target, labelled, epochs=2, micro=1, window=4, lr=0.3):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for epoch in range(epochs):
        log = []
        for first in range(0, len(images), micro * window):
            optimizer.zero_grad()
            for k in range(first, first + micro * window, micro):
                part = slice(k, k + micro)
                loss = masked_loss(model(images[part]), target[part], labelled[part])
                (loss / window).backward()  # expect: microbatch-normalization
                log.append(loss.item())
            optimizer.step()
        print(f"epoch {epoch} loss {sum(log) / len(log):.4f}")


if __name__ == "__main__":
    torch.manual_seed(21)
    fit(FCN(), *crowd_labels(16))
