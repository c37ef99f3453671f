"""Model and optimizer are built a second time in the middle of the run and their states are loaded: the training goes on
from a checkpoint."""

import io

import torch
import torch.nn as nn


def build():
    model = nn.Sequential(nn.Linear(5, 24), nn.ReLU(), nn.Linear(24, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)
    return model, optimizer, scheduler


def save(epoch, *parts):
    buffer = io.BytesIO()
    torch.save(
        {"epoch": epoch, "parts": [p.state_dict() for p in parts], "rng": torch.get_rng_state()}, buffer
    )
    return buffer


def load(buffer, *parts):
    buffer.seek(0)
    ckpt = torch.load(buffer)
    for part, state in zip(parts, ckpt["parts"]):
        part.load_state_dict(state)
    torch.set_rng_state(ckpt["rng"])
    return ckpt["epoch"]


def run(parts, x, y, first, last):
    model, optimizer, scheduler = parts
    for epoch in range(first, last):
        for idx in torch.randperm(len(x)).split(20):
            loss = nn.functional.mse_loss(model(x[idx]), y[idx])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step()
        print(f"epoch {epoch} loss {loss.item():.5f} lr {scheduler.get_last_lr()[0]:.5f}")
    return save(last, *parts)


torch.manual_seed(0)
x = torch.randn(160, 5)
y = x[:, :1].relu() - x[:, 1:2]
checkpoint = run(build(), x, y, 0, 2)
parts = build()
start = load(checkpoint, *parts)
run(parts, x, y, start, 4)
