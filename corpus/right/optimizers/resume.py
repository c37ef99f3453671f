"""Looks like an optimizer made twice: the run is resumed in the middle, and the second optimizer takes over
the state of the first."""

import io

import torch
from torch import nn
from torch.nn import functional as F


def build():
    model = nn.Sequential(nn.Linear(7, 24), nn.Mish(), nn.Linear(24, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    return model, optimizer, scheduler


def save(model, optimizer, scheduler, epoch):
    buffer = io.BytesIO()
    torch.save(
        {
            "epoch": epoch,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "rng": torch.get_rng_state(),
        },
        buffer,
    )
    buffer.seek(0)
    return buffer


def load(buffer):
    checkpoint = torch.load(buffer)
    model, optimizer, scheduler = build()
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    scheduler.load_state_dict(checkpoint["scheduler"])
    torch.set_rng_state(checkpoint["rng"])
    return model, optimizer, scheduler, checkpoint["epoch"] + 1


def run(x, y, until, checkpoint=None):
    if checkpoint is None:
        (model, optimizer, scheduler), first = build(), 0
    else:
        model, optimizer, scheduler, first = load(checkpoint)
    for epoch in range(first, until):
        for b in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            loss = F.l1_loss(model(x[b]).squeeze(1), y[b])
            loss.backward()
            optimizer.step()
        scheduler.step()
        checkpoint = save(model, optimizer, scheduler, epoch)
    print(f"until epoch {until}: loss {loss.item():.4f}, lr {scheduler.get_last_lr()[0]:.5f}")
    return checkpoint


if __name__ == "__main__":
    torch.manual_seed(99)
    x = torch.randn(128, 7)
    y = x[:, 0].abs() - x[:, 1]
    checkpoint = run(x, y, until=2)
    run(x, y, until=4, checkpoint=checkpoint)
