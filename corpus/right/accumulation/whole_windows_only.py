"""Looks like a dropped tail: the micro-batches that do not fill a window are never run at all."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(42)
config = dict(micro_batch_size=8, grad_accum=4, epochs=2, lr=0.05, momentum=0.9)

images = torch.randn(148, 1, 12, 12)
labels = (images[:, :, :6].mean((1, 2, 3)) > images[:, :, 6:].mean((1, 2, 3))).long()
images[labels == 1, :, 2:5, 2:5] += 0.8

loader = DataLoader(
    TensorDataset(images, labels), batch_size=config["micro_batch_size"], shuffle=True, drop_last=True
)

net = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    nn.GroupNorm(2, 8),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(8, 16, 3, padding=1),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(16, 2),
)
opt = torch.optim.SGD(net.parameters(), lr=config["lr"], momentum=config["momentum"])

n_usable = len(loader) - len(loader) % config["grad_accum"]

for epoch in range(config["epochs"]):
    correct = 0
    opt.zero_grad()
    for i, (x, y) in enumerate(loader):
        if i >= n_usable:
            break
        logits = net(x)
        loss = nn.functional.cross_entropy(logits, y)
        (loss / config["grad_accum"]).backward()
        correct += (logits.argmax(1) == y).sum().item()
        if (i + 1) % config["grad_accum"] == 0:
            opt.step()
            opt.zero_grad()
    print(f"epoch {epoch} acc {correct / (n_usable * config['micro_batch_size']):.2%}")
