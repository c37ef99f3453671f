"""Siamese training without negatives. Half of each pair is detached, so no gradient reaches the
encoder from the target side; the method depends on exactly that."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class SimSiam(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(64, 48), nn.BatchNorm1d(48), nn.ReLU(),
            nn.Linear(48, dim), nn.BatchNorm1d(dim, affine=False),
        )
        self.predictor = nn.Sequential(nn.Linear(dim, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, dim))

    def forward(self, v1, v2):
        z1, z2 = self.encoder(v1), self.encoder(v2)
        return self.predictor(z1), self.predictor(z2), z1.detach(), z2.detach()


def view(x):
    keep = (torch.rand_like(x) > 0.25).float()
    return x * keep + 0.05 * torch.randn_like(x)


def loss_fn(p1, p2, z1, z2):
    return -0.5 * (F.cosine_similarity(p1, z2).mean() + F.cosine_similarity(p2, z1).mean())


@torch.no_grad()
def knn_accuracy(model, x, y, n_train):
    model.eval()
    z = F.normalize(model.encoder(x), dim=1)
    nearest = (z[n_train:] @ z[:n_train].t()).argmax(1)
    model.train()
    return (y[:n_train][nearest] == y[n_train:]).float().mean().item()


def main():
    torch.manual_seed(201)
    d = load_digits()
    x = torch.tensor(d.data, dtype=torch.float32) / 16
    y = torch.tensor(d.target)
    model = SimSiam()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    for step in range(25):
        xb = x[torch.randint(0, len(x), (128,))]
        loss = loss_fn(*model(view(xb), view(xb)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 8 == 0:
            print(f"step {step:2d}  loss {loss.item():.4f}")
    print(f"nearest-neighbour accuracy {knn_accuracy(model, x, y, 1400):.3f}")


main()
