"""Each layer has an optimizer and a loss of its own, and gets the detached output of the one below: there is no gradient
between layers on purpose."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class LocalLayer:
    def __init__(self, n_in, n_out, n_cls, lr):
        self.body = nn.Sequential(nn.Linear(n_in, n_out), nn.ReLU())
        self.aux = nn.Linear(n_out, n_cls)
        self.opt = torch.optim.Adam([*self.body.parameters(), *self.aux.parameters()], lr=lr)

    def train_on(self, x, y):
        h = self.body(x)
        loss = F.cross_entropy(self.aux(h), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return h.detach(), loss.item()


torch.manual_seed(0)
x = torch.randn(300, 10)
y = (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] > 0).long()
layers = [LocalLayer(a, b, 3, lr=5e-3) for a, b in ((10, 48), (48, 32), (32, 16))]
for epoch in range(3):
    for idx in torch.randperm(300).split(30):
        h, losses = x[idx], []
        for layer in layers:
            h, loss = layer.train_on(h, y[idx])
            losses.append(round(loss, 3))
    print("epoch", epoch, "local losses", losses)
