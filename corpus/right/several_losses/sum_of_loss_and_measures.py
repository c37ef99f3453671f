"""A sum of the loss and of detached measures is displayed. Only the loss is trained, on purpose."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.Tanh())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        feat = self.body(x)
        return self.head(feat), feat


class Trainer:
    def __init__(self):
        self.net, self.scale = Net(), 0.01
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def drift(self, feat, logits):
        calm = F.mse_loss(feat.detach(), torch.zeros_like(feat))
        sharp = -(logits.detach().softmax(-1) * logits.detach().log_softmax(-1)).sum(-1).mean()
        size = sum(p.detach().square().sum() for p in self.net.parameters())
        return calm + self.scale * sharp + self.scale * size

    def losses(self, x, y):
        logits, feat = self.net(x)
        loss = F.cross_entropy(logits, y)
        aux = self.drift(feat, logits)
        total = loss + 0.1 * aux
        return loss, {"total": total.item(), "loss": loss.item(), "aux": aux.item()}

    def step(self, x, y):
        loss, log = self.losses(x, y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return log


torch.manual_seed(0)
trainer = Trainer()
for _ in range(15):
    log = trainer.step(torch.randn(32, 8), torch.randint(0, 3, (32,)))
print(log)
