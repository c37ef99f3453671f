"""Ten micro-batches in windows of four: the last two of each epoch are cleared before any step, so a fifth of
the data is not trained on, and there are 4 updates in place of 6.
"""

from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Discs(Dataset):
    """Grey images of a disc, with the mask of the disc."""

    def __init__(self, n=40, size=16, seed=0):
        g = torch.Generator().manual_seed(seed)
        centre = torch.randint(4, size - 4, (n, 2), generator=g)
        yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
        d = (yy - centre[:, 0, None, None]) ** 2 + (xx - centre[:, 1, None, None]) ** 2
        self.masks = (d < 12).float().unsqueeze(1)
        self.images = self.masks + 0.3 * torch.randn(n, 1, size, size, generator=g)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images[i], self.masks[i]


@dataclass
class Config:
    epochs: int = 2
    batch_size: int = 4
    grad_accum: int = 4
    lr: float = 0.5


class Trainer:
    def __init__(self, model, dataset, cfg):
        self.model, self.cfg = model, cfg
        self.loader = DataLoader(dataset, cfg.batch_size, shuffle=True)
        self.optim = torch.optim.SGD(model.parameters(), lr=cfg.lr)
        self.criterion = nn.BCEWithLogitsLoss(reduction="sum")

    def update(self, pixels):
        for p in self.model.parameters():
            p.grad /= pixels
        self.optim.step()
        self.optim.zero_grad()

    def run_epoch(self):
        self.model.train()
        self.optim.zero_grad()
        total, pixels = 0.0, 0
        for it, (image, mask) in enumerate(self.loader):
            loss = self.criterion(self.model(image), mask)
            loss.backward()
            total, pixels = total + loss.item(), pixels + mask.numel()
            if (it + 1) % self.cfg.grad_accum == 0:  # expect: accumulation-window
                self.update(pixels)
                pixels = 0
        return total / sum(mask.numel() for _, mask in self.loader.dataset)

    def fit(self):
        for epoch in range(self.cfg.epochs):
            print(f"epoch {epoch} bce {self.run_epoch():.4f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))
    Trainer(net, Discs(), Config()).fit()
