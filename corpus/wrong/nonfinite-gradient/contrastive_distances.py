"""The pairwise distances include each item with itself, where sqrt(0) has an infinite slope, so the first backward pass turns all gradients into NaN."""

import torch
import torch.nn as nn
from sklearn.datasets import load_iris

torch.manual_seed(55)
torch.set_num_threads(1)

MARGIN = 1.0


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))

    def forward(self, x):
        return self.layers(x)


def pairwise_distance(z):
    diff = z.unsqueeze(0) - z.unsqueeze(1)
    return torch.sqrt((diff**2).sum(-1))  # expect: nonfinite-gradient


def contrastive_loss(z, label):
    d = pairwise_distance(z)
    off_diagonal = 1 - torch.eye(len(z))
    same = (label[:, None] == label[None, :]).float() * off_diagonal
    other = (label[:, None] != label[None, :]).float()
    pull = (same * d**2).sum() / same.sum()
    push = (other * torch.clamp(MARGIN - d, min=0) ** 2).sum() / other.sum()
    return pull + push


def nearest_neighbour_accuracy(z, label):
    d = torch.cdist(z, z) + 1e9 * torch.eye(len(z))
    return (label[d.argmin(1)] == label).float().mean().item()


def main():
    iris = load_iris()
    x = torch.tensor(iris.data, dtype=torch.float32)
    x = (x - x.mean(0)) / x.std(0)
    y = torch.tensor(iris.target)
    model = Embedder()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(3):
        model.train()
        total = 0.0
        for idx in torch.randperm(len(x)).split(30):
            loss = contrastive_loss(model(x[idx]), y[idx])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        model.eval()
        with torch.no_grad():
            acc = nearest_neighbour_accuracy(model(x), y)
        print(f"epoch {epoch} loss {total / 5:.4f} 1-nn acc {acc:.3f}")


if __name__ == "__main__":
    main()
