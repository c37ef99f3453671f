"""Looks like a broken graph: every block is trained by its own local loss, and its output is detached
before it goes to the next."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_wine
from torch import nn


class LocalBlock(nn.Module):
    def __init__(self, n_in, n_out, n_classes, lr):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(n_in, n_out), nn.BatchNorm1d(n_out), nn.ReLU())
        self.aux = nn.Linear(n_out, n_classes)
        self.opt = torch.optim.Adam(self.parameters(), lr=lr)

    def local_step(self, x, y):
        h = self.encode(x)
        loss = F.cross_entropy(self.aux(h), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return h.detach(), loss.item()


def main():
    torch.manual_seed(1)
    x, y = load_wine(return_X_y=True)
    x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    x = (x - x.mean(0)) / x.std(0)
    blocks = [LocalBlock(i, o, 3, 1e-2) for i, o in ((13, 32), (32, 24), (24, 16))]
    for epoch in range(2):
        for rows in torch.randperm(len(x))[:160].split(32):
            h, losses = x[rows], []
            for block in blocks:
                h, loss = block.local_step(h, y[rows])
                losses.append(loss)
        print(f"epoch {epoch}:", " ".join(f"{v:.3f}" for v in losses))


main()
