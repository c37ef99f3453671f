"""The ramp of the age task's weight uses integer division, so the weight is 0 in every epoch of the run and the age head's gradient is exactly zero."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Config:
    epochs: int = 3
    ramp_epochs: int = 3
    batch_size: int = 25
    lr: float = 1e-2
    age_weight: float = 0.5


class FaceNet(nn.Module):
    def __init__(self, n_in=15, width=24):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(n_in, width), nn.BatchNorm1d(width), nn.PReLU(), nn.Linear(width, width), nn.PReLU()
        )
        self.gender = nn.Linear(width, 1)
        self.age = nn.Linear(width, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.gender(h).squeeze(1), self.age(h).squeeze(1)


class MultiTaskLoss:
    def __init__(self, cfg):
        self.cfg = cfg
        self.epoch = 0
        self.bce = nn.BCEWithLogitsLoss()
        self.l1 = nn.L1Loss()

    def set_epoch(self, epoch):
        self.epoch = epoch

    @property
    def weight(self):
        ramp = min(1, (self.epoch + 0.5) // self.cfg.ramp_epochs)  # expect: zero-gradient
        return self.cfg.age_weight * ramp

    def __call__(self, outputs, gender, age):
        g, a = outputs
        parts = {"gender": self.bce(g, gender), "age": self.l1(a, age)}
        return parts["gender"] + self.weight * parts["age"], parts


def make_faces(n):
    x = torch.randn(n, 15)
    gender = (x[:, 0] - x[:, 1] > 0).float()
    age = 0.6 * x[:, 2] + 0.4 * x[:, 3].abs() - 0.3 * x[:, 0]
    return TensorDataset(x, gender, age)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(18)
    cfg = Config()
    loader = DataLoader(make_faces(250), batch_size=cfg.batch_size, shuffle=True)
    xv, gv, av = make_faces(100).tensors
    model, criterion = FaceNet(), MultiTaskLoss(cfg)
    optimizer = torch.optim.Adamax(model.parameters(), lr=cfg.lr)
    for epoch in range(cfg.epochs):
        criterion.set_epoch(epoch)
        model.train()
        for x, gender, age in loader:
            loss, parts = criterion(model(x), gender, age)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            g, a = model(xv)
        acc = ((g > 0).float() == gv).float().mean().item()
        mae = (a - av).abs().mean().item()
        print(f"epoch {epoch} loss {loss.item():.4f} gender acc {acc:.3f} age mae {mae:.3f}")


main()
