"""The keys of a momentum encoder are computed with a graph: each backward runs through it in vain. A linear
probe with a new head comes afterwards."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(4)


class Encoder(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.conv = nn.Conv1d(1, 8, 3, padding=1)
        self.fc = nn.Linear(8, dim)

    def forward(self, x):
        return self.fc(F.relu(self.conv(x)).mean(2))


class Contrast(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder_q, self.encoder_k = Encoder(), Encoder()
        self.encoder_k.load_state_dict(self.encoder_q.state_dict())

    @torch.no_grad()
    def follow(self):
        for param_q, param_k in zip(self.encoder_q.parameters(), self.encoder_k.parameters(), strict=True):
            param_k.data = param_k.data * 0.9 + param_q.data * 0.1

    def forward(self, x_q, x_k):
        q = F.normalize(self.encoder_q(x_q), dim=1)
        self.follow()
        k = F.normalize(self.encoder_k(x_k), dim=1)  # expect: wasted-gradient
        return q @ k.T / 0.2


def pretrain(model, x):
    optimizer = torch.optim.SGD(model.encoder_q.parameters(), lr=0.05, momentum=0.9)
    for _ in range(3):
        for batch in x.split(32):
            views = [batch + 0.3 * torch.randn_like(batch) for _ in range(2)]
            loss = F.cross_entropy(model(*views), torch.arange(len(batch)))  # expect: wasted-gradient
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"contrast {loss.item():.4f}")


def probe(backbone, x, y):
    for param in backbone.parameters():
        param.requires_grad = False
    backbone.fc = nn.Linear(8, 3)
    optimizer = torch.optim.SGD(backbone.fc.parameters(), lr=0.5)
    for _ in range(8):
        loss = F.cross_entropy(backbone(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"probe {loss.item():.4f}")


x = torch.randn(128, 1, 12).cumsum(2)
model = Contrast()
pretrain(model, x)
probe(model.encoder_q, x, x[:, 0, :3].argmax(1))
