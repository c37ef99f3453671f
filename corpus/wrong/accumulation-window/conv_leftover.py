"""The loop variable restarts at 0 in each epoch while 2 of its 10 micro-batches wait for their step: the first window
of every later epoch holds six micro-batches, and that of the last epoch is never applied."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def batches(images, labels, size, g):
    order = torch.randperm(len(images), generator=g)
    for s in range(0, len(order), size):
        sel = order[s : s + size]
        yield images[sel], labels[sel]


def build():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 4),
    )


def train(model, images, labels, epochs=4, micro=12, window=4):
    g = torch.Generator().manual_seed(3)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    opt.zero_grad()
    history = []
    for _ in range(epochs):
        running = 0.0
        for i, (x, y) in enumerate(batches(images, labels, micro, g)):  # expect: accumulation-window
            loss = F.cross_entropy(model(x), y)
            (loss / window).backward()
            running += loss.item()
            if i % window == window - 1:  # expect: accumulation-window
                opt.step()
                opt.zero_grad()
        history.append(running / (i + 1))
    return history


torch.manual_seed(3)
labels = torch.arange(120) % 4
images = torch.randn(120, 1, 8, 8) * 0.5
for k in range(4):
    r, c = divmod(k, 2)
    images[labels == k, :, 4 * r : 4 * r + 4, 4 * c : 4 * c + 4] += 1.0

hist = train(build(), images, labels)
print("loss per epoch:", " ".join(f"{h:.3f}" for h in hist))
