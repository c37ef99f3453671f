"""The root of the zero on the diagonal has an infinite slope, times the zero of the mask: all 4 gradients are
NaN in the first update already, and all weights after it."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def pairwise_distances(z):
    d2 = (z[:, None] - z[None, :]).pow(2).sum(-1)
    return d2.sqrt()  # expect: nonfinite-gradient


def contrastive_loss(z, labels, margin=1.0):
    d = pairwise_distances(z)
    same = labels[:, None] == labels[None, :]
    other = ~torch.eye(len(z), dtype=torch.bool)
    pull = d[same & other].pow(2).mean()
    push = torch.relu(margin - d[~same]).pow(2).mean()
    return pull + push


def blobs(n, classes, dim):
    centers = 2 * torch.randn(classes, dim)
    labels = torch.randint(classes, (n,))
    return centers[labels] + torch.randn(n, dim), labels


def main():
    torch.manual_seed(2)
    loader = DataLoader(TensorDataset(*blobs(96, 4, 10)), batch_size=32, shuffle=True)
    encoder = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 8))
    opt = torch.optim.SGD(encoder.parameters(), lr=0.1)
    for epoch in range(2):
        for x, labels in loader:
            loss = contrastive_loss(encoder(x), labels)
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"epoch {epoch}: {loss.item():.4f}")


main()
