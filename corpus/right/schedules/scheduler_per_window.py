"""Looks like a scheduler that is stepped too rarely: it follows the updates, not the micro-batches, and
T_max counts updates."""

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset


def accumulate(model, optimizer, scheduler, batches, criterion, steps):
    optimizer.zero_grad()
    losses = []
    for i, (x, y) in enumerate(batches, 1):
        loss = criterion(model(x), y)
        loss.div(steps).backward()
        losses.append(loss.detach())
        if i % steps == 0:
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return torch.stack(losses).mean().item()


def main(epochs=3, steps=4):
    torch.manual_seed(15)
    x = torch.randn(256, 6)
    y = (x @ torch.randn(6, 5)).argmax(1)
    loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
    assert len(loader) % steps == 0
    model = nn.Sequential(nn.Linear(6, 24), nn.LeakyReLU(), nn.Linear(24, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.8)
    scheduler = CosineAnnealingLR(optimizer, T_max=epochs * len(loader) // steps)
    for epoch in range(epochs):
        loss = accumulate(model, optimizer, scheduler, loader, nn.CrossEntropyLoss(), steps)
        print(f"epoch {epoch} loss {loss:.4f} lr {scheduler.get_last_lr()[0]:.4f}")


main()
