"""The gradients are cleared between backward and step, so that neither the encoder nor its momentum copy
ever moves."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(3)


class Encoder(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.conv = nn.Conv1d(1, 8, 3, padding=1)
        self.bn = nn.BatchNorm1d(8)
        self.fc = nn.Linear(8, dim)

    def forward(self, x):
        return F.normalize(self.fc(F.relu(self.bn(self.conv(x))).mean(2)), dim=1)


class Contrast(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder_q = Encoder()
        self.encoder_k = copy.deepcopy(self.encoder_q)
        for param in self.encoder_k.parameters():
            param.requires_grad = False

    def forward(self, x_q, x_k):
        q = self.encoder_q(x_q)
        with torch.no_grad():
            for param_q, param_k in zip(
                self.encoder_q.parameters(), self.encoder_k.parameters(), strict=True
            ):
                param_k.data = param_k.data * 0.9 + param_q.data * 0.1
            k = self.encoder_k(x_k)
        return q @ k.T / 0.2


x = torch.randn(128, 1, 12).cumsum(2)
model = Contrast()
optimizer = torch.optim.SGD(model.encoder_q.parameters(), lr=0.05, momentum=0.9)
for epoch in range(3):
    model.train()
    total = 0.0
    for batch in x.split(32):
        views = [batch + 0.3 * torch.randn_like(batch) for _ in range(2)]
        loss = F.cross_entropy(model(*views), torch.arange(len(batch)))
        loss.backward()
        optimizer.zero_grad()  # expect: zero-grad-misplaced
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch} loss {total / 4:.4f}")
