"""Two crops of a signal and a predictor, as in SimSiam, but the representations keep their gradient."""

import torch
from torch import nn
from torch.nn import functional as F


class Siamese(nn.Module):
    def __init__(self, length, width):
        super().__init__()
        self.represent = nn.Sequential(
            nn.Linear(length, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 8)
        )
        self.predict = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))

    def forward(self, left, right):
        left, right = self.represent(left), self.represent(right)
        forth = F.mse_loss(F.normalize(self.predict(left)), F.normalize(right))  # expect: attached-target
        back = F.mse_loss(F.normalize(self.predict(right)), F.normalize(left))
        return forth + back


torch.manual_seed(2)
signals = torch.randn(256, 24).cumsum(1)
network = Siamese(16, 32)
optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
for step in range(16):
    batch = signals[torch.randint(256, (32,))]
    starts = torch.randint(9, (2,)).tolist()
    crops = [batch[:, start : start + 16] + 0.05 * torch.randn(32, 16) for start in starts]
    optimizer.zero_grad()
    network(*crops).backward()
    optimizer.step()
