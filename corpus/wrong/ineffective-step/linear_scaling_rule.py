"""The linear scaling rule uses integer division (lr * batch // 256), which gives a learning rate of exactly 0, so no step changes anything."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


def get_parser():
    parser = argparse.ArgumentParser("SimSiam-like pretraining")
    parser.add_argument("--epochs", default=2, type=int)
    parser.add_argument("-b", "--batch-size", default=64, type=int)
    parser.add_argument("--lr", default=0.5, type=float, help="base learning rate for a batch of 256")
    parser.add_argument("--momentum", default=0.9, type=float)
    parser.add_argument("--dim", default=16, type=int)
    parser.add_argument("--seed", default=1, type=int)
    return parser


class SimSiam(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, dim))
        self.predictor = nn.Sequential(nn.Linear(dim, 8), nn.ReLU(), nn.Linear(8, dim))

    def forward(self, x1, x2):
        z1, z2 = self.encoder(x1), self.encoder(x2)
        return self.predictor(z1), self.predictor(z2), z1.detach(), z2.detach()


def augment(x):
    keep = (torch.rand_like(x) > 0.2).float()
    return x * keep + 0.05 * torch.randn_like(x)


def similarity(p, z):
    return F.cosine_similarity(p, z, dim=-1).mean()


def train(data, model, optimizer, args):
    model.train()
    meter = []
    for idx in torch.randperm(len(data)).split(args.batch_size):
        p1, p2, z1, z2 = model(augment(data[idx]), augment(data[idx]))
        loss = -0.5 * (similarity(p1, z2) + similarity(p2, z1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.append(loss.item())
    return sum(meter) / len(meter)


def main():
    args = get_parser().parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    data = torch.tensor(load_digits().data[:512], dtype=torch.float32) / 16
    model = SimSiam(args.dim)
    init_lr = args.lr * args.batch_size // 256  # expect: ineffective-step
    optimizer = torch.optim.SGD(model.parameters(), init_lr, momentum=args.momentum, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)
    for epoch in range(args.epochs):
        loss = train(data, model, optimizer, args)
        scheduler.step()
        print(f"epoch {epoch} loss {loss:.4f}")
    model.eval()
    with torch.no_grad():
        spread = F.normalize(model.encoder(data), dim=-1).std(0).mean().item()
    print(f"embedding std {spread:.4f}")


if __name__ == "__main__":
    main()
