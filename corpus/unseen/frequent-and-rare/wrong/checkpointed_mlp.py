"""Activation checkpointing in the reentrant form. The input needs no gradient, so the checkpointed
blocks are run without a graph and only the head is trained."""
import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.checkpoint import checkpoint

warnings.filterwarnings("ignore")


class Block(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.linear = nn.Linear(n_in, n_out)
        self.norm = nn.LayerNorm(n_out)

    def forward(self, x):
        return F.gelu(self.norm(self.linear(x)))


class DeepNet(nn.Module):
    def __init__(self, sizes, n_classes, use_checkpoint=True):
        super().__init__()
        self.blocks = nn.ModuleList(Block(a, b) for a, b in zip(sizes[:-1], sizes[1:]))
        self.head = nn.Linear(sizes[-1], n_classes)
        self.use_checkpoint = use_checkpoint

    def forward(self, x):
        for block in self.blocks:
            if self.use_checkpoint and self.training:
                x = checkpoint(block, x, use_reentrant=True)  # expect: reentrant checkpoint without grad input
            else:
                x = block(x)
        return self.head(x)


def data():
    d = load_digits()
    x = torch.tensor(d.data, dtype=torch.float32) / 16
    y = torch.tensor(d.target)
    order = torch.randperm(len(x))
    return x[order], y[order]


def main(batch_size=128, epochs=2):
    torch.manual_seed(77)
    x, y = data()
    n_train = 1400
    model = DeepNet([64, 48, 48, 48], 10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.0)
    for epoch in range(epochs):
        model.train()
        total = 0.0
        for i in range(0, n_train, batch_size):
            xb, yb = x[i:i + batch_size], y[i:i + batch_size]
            loss = F.cross_entropy(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        model.eval()
        with torch.no_grad():
            acc = (model(x[n_train:]).argmax(1) == y[n_train:]).float().mean().item()
        print(f"epoch {epoch}  loss {total / (n_train / batch_size):.4f}  held-out {acc:.3f}")


if __name__ == "__main__":
    main()
