"""Looks like a scheduler at the wrong pace: OneCycleLR is meant to be stepped after every batch, and was
told how many there will be."""

import torch
import torch.nn as nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset


class BasicBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1 = nn.Conv2d(c, c, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(c)
        self.conv2 = nn.Conv2d(c, c, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(c)

    def forward(self, x):
        out = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(x + self.bn2(self.conv2(out)))


def stripes(n):
    y = torch.randint(0, 2, (n,))
    wave = torch.sin(torch.arange(10) * 1.6 + torch.rand(n, 1))
    x = wave[:, None, :].expand(n, 10, 10).clone()
    x[y == 1] = x[y == 1].transpose(1, 2)
    return x[:, None] + 0.5 * torch.randn(n, 1, 10, 10), y


def fit_one_cycle(epochs, max_lr, model, loader, weight_decay=1e-4, grad_clip=0.1):
    history = []
    optimizer = torch.optim.Adam(model.parameters(), max_lr, weight_decay=weight_decay)
    sched = OneCycleLR(optimizer, max_lr, epochs=epochs, steps_per_epoch=len(loader))
    for epoch in range(epochs):
        model.train()
        lrs = []
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            nn.utils.clip_grad_value_(model.parameters(), grad_clip)
            optimizer.step()
            optimizer.zero_grad()
            lrs.append(optimizer.param_groups[0]["lr"])
            sched.step()
        history.append((loss.item(), lrs[-1]))
    return history


torch.manual_seed(0)
loader = DataLoader(TensorDataset(*stripes(96)), batch_size=16, shuffle=True)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), BasicBlock(8), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(8, 2)
)
for loss, lr in fit_one_cycle(2, 0.01, model, loader):
    print(f"loss {loss:.4f}, last_lr {lr:.6f}")
