"""The backbone is unfrozen in the fourth epoch, but the optimizer was made of the head alone."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU())
        self.head = nn.Linear(24, 4)

    def forward(self, x):
        return self.head(self.backbone(x))


def set_trainable(module, flag):
    for p in module.parameters():
        p.requires_grad_(flag)


def run_epoch(model, opt, x, y, size=32):
    for i in range(0, len(x), size):
        opt.zero_grad()
        loss = F.cross_entropy(model(x[i : i + size]), y[i : i + size])
        loss.backward()
        opt.step()
    return loss.item()


def main():
    torch.manual_seed(7)
    x = torch.randn(96, 12)
    model = Model()
    set_trainable(model.backbone, False)
    opt = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    for epoch in range(6):
        if epoch == 3:
            set_trainable(model.backbone, True)  # expect: param-not-in-optimizer
        print(epoch, run_epoch(model, opt, x, x[:, :4].argmax(1)))


if __name__ == "__main__":
    main()
