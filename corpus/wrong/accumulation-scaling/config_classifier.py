"""The loss is divided by the micro-batch size (8) where the number of accumulated micro-batches (4) was meant, which halves the gradient of each update."""

from dataclasses import dataclass
from itertools import islice

import torch
from sklearn.datasets import load_wine
from torch import nn


@dataclass(frozen=True)
class Config:
    seed: int = 13
    epochs: int = 3
    micro_size: int = 8
    n_micro: int = 4
    hidden: int = 24
    lr: float = 0.2
    grad_clip: float = 10.0


def load(cfg):
    data = load_wine()
    x = torch.tensor(data.data, dtype=torch.float32)
    x = (x - x.mean(0)) / x.std(0)
    y = torch.tensor(data.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(cfg.seed))
    x, y = x[order], y[order]
    return (x[:128], y[:128]), (x[128:], y[128:])


def micro_batches(x, y, size):
    order = torch.randperm(len(x))
    for idx in order.split(size):
        yield x[idx], y[idx]


class Experiment:
    def __init__(self, cfg: Config):
        self.cfg = cfg
        torch.manual_seed(cfg.seed)
        self.train_data, self.test_data = load(cfg)
        self.net = nn.Sequential(nn.Linear(13, cfg.hidden), nn.Tanh(), nn.Linear(cfg.hidden, 3))
        self.opt = torch.optim.SGD(self.net.parameters(), lr=cfg.lr)
        self.loss_fn = nn.CrossEntropyLoss(label_smoothing=0.05)

    def update(self, window):
        self.opt.zero_grad()
        logged = 0.0
        for x, y in window:
            loss = self.loss_fn(self.net(x), y)
            logged += loss.item() / len(window)
            (loss / self.cfg.micro_size).backward()  # expect: accumulation-scaling
        nn.utils.clip_grad_norm_(self.net.parameters(), self.cfg.grad_clip)
        self.opt.step()
        return logged

    def run(self):
        for epoch in range(self.cfg.epochs):
            self.net.train()
            stream = micro_batches(*self.train_data, self.cfg.micro_size)
            losses = []
            while window := list(islice(stream, self.cfg.n_micro)):
                losses.append(self.update(window))
            print(f"epoch {epoch} loss {sum(losses) / len(losses):.4f} test acc {self.accuracy():.3f}")

    @torch.no_grad()
    def accuracy(self):
        self.net.eval()
        x, y = self.test_data
        return (self.net(x).argmax(1) == y).float().mean().item()


if __name__ == "__main__":
    torch.set_num_threads(1)
    Experiment(Config()).run()
