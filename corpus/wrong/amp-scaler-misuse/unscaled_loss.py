"""The regularising loss is back-propagated without the scale, so after unscaling its gradient is 1/65536 of what it
should be, and the embeddings are not kept near their centres."""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_iris


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", default=4, type=int)
    p.add_argument("--bs", default=30, type=int)
    p.add_argument("--lr", default=0.05, type=float)
    p.add_argument("--center-weight", default=0.5, type=float)
    p.add_argument("--no-amp", dest="amp", action="store_false")
    return p.parse_args()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
        self.fc = torch.nn.Linear(2, 3)
        self.register_buffer("centers", torch.tensor([[0.0, 1.0], [0.9, -0.5], [-0.9, -0.5]]))

    def forward(self, x):
        z = self.embed(x)
        return z, self.fc(z)


def train_epoch(model, x, y, optimizer, scaler, args):
    ce_sum = center_sum = 0.0
    for idx in torch.randperm(len(x)).split(args.bs):
        optimizer.zero_grad()
        with torch.autocast(device_type="cpu", dtype=torch.bfloat16, enabled=args.amp):
            z, logits = model(x[idx])
            ce = F.cross_entropy(logits, y[idx])
            center = args.center_weight * (z - model.centers[y[idx]]).pow(2).sum(1).mean()
        scaler.scale(ce).backward(retain_graph=True)
        center.backward()  # expect: amp-scaler-misuse
        scaler.step(optimizer)
        scaler.update()
        ce_sum += ce.item() * len(idx)
        center_sum += center.item() * len(idx)
    return ce_sum / len(x), center_sum / len(x)


def main():
    args = get_args()
    torch.manual_seed(12)
    iris = load_iris()
    x = torch.tensor(iris.data, dtype=torch.float32)
    x = (x - x.mean(0)) / x.std(0)
    y = torch.tensor(iris.target)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", enabled=args.amp)
    for epoch in range(args.epochs):
        ce, center = train_epoch(model, x, y, optimizer, scaler, args)
        print(f"epoch {epoch} ce {ce:.4f} center {center:.4f}")


main()
