"""Looks like a tail that leaks into the next epoch: micro-batches are counted through all epochs as one
stream, each window holds exactly four of them, and their total is a whole number of windows."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATE, EPOCHS = 4, 4


def stream(loader, epochs):
    for epoch in range(epochs):
        for batch in loader:
            yield epoch, batch


torch.manual_seed(0)
x = torch.randn(80, 7)
y = x.abs().argmax(1)
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
assert len(loader) * EPOCHS % ACCUMULATE == 0

model = nn.Sequential(nn.Linear(7, 40), nn.ReLU(), nn.Linear(40, 7))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
updates = 0
for micro, (epoch, (xb, yb)) in enumerate(stream(loader, EPOCHS), start=1):
    loss = nn.functional.cross_entropy(model(xb), yb)
    (loss / ACCUMULATE).backward()
    if micro % ACCUMULATE == 0:
        optimizer.step()
        optimizer.zero_grad()
        updates += 1
        if updates % 5 == 0:
            print(f"update {updates} (epoch {epoch}) loss {loss.item():.4f}")
