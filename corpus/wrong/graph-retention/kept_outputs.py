"""The outputs of each batch are kept for the epoch's metric with their graphs, so the activations' bookkeeping of all
batches stays in memory."""

import argparse
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F


def r2(pred, true):
    return 1 - (pred - true).pow(2).sum() / (true - true.mean()).pow(2).sum()


class Experiment:
    def __init__(self, hparams):
        torch.manual_seed(hparams.seed)
        self.hp = hparams
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
        self.opt = torch.optim.Adam(self.net.parameters(), lr=hparams.lr)
        self.x = torch.rand(300, 8)
        self.y = (self.x[:, :4].prod(1) * 8 + self.x[:, 4:].sum(1)).unsqueeze(1)

    def training_epoch(self):
        preds, targets = [], []
        for idx in torch.randperm(len(self.x)).split(self.hp.batch_size):
            out = self.net(self.x[idx])
            loss = F.mse_loss(out, self.y[idx])
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            preds.append(out)  # expect: graph-retention
            targets.append(self.y[idx])
        return r2(torch.cat(preds), torch.cat(targets)).item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog=Path(__file__).name)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--batch-size", type=int, default=30)
    parser.add_argument("--seed", type=int, default=2)
    exp = Experiment(parser.parse_args())
    for epoch in range(3):
        print(f"epoch {epoch}: r2 {exp.training_epoch():.4f}")
