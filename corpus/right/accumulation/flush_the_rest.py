"""Looks like a tail without its own divisor: the last window is shorter, and is divided by its own length."""

import itertools

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)

ACCUM = 4
EPOCHS = 2

digits = load_digits()
x = torch.tensor(digits.data[:288], dtype=torch.float32) / 16.0
y = torch.tensor(digits.target[:288])
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)

model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 10))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)


def chunks(iterable, n):
    it = iter(iterable)
    while chunk := list(itertools.islice(it, n)):
        yield chunk


for epoch in range(EPOCHS):
    running = 0.0
    for window in chunks(loader, ACCUM):
        optimizer.zero_grad()
        for xb, yb in window:
            loss = criterion(model(xb), yb) / len(window)
            loss.backward()
            running += loss.item()
        optimizer.step()
    print(f"epoch {epoch}: loss {running / -(-len(loader) // ACCUM):.4f}")
