"""The loss is divided by a changing number: it is the size of the current window, which is shorter at the end of the
epoch and is flushed there."""

import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
d = load_digits()
x, y = torch.tensor(d.data[:704] / 16, dtype=torch.float32), torch.tensor(d.target[:704])
loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)

model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
accum = 4
n_batches = len(loader)

for epoch in range(3):
    total = 0.0
    for i, (xb, yb) in enumerate(loader):
        window_start = i - i % accum
        window = min(accum, n_batches - window_start)
        loss = nn.functional.cross_entropy(model(xb), yb)
        (loss / window).backward()
        total += loss.item()
        if (i + 1) % accum == 0 or i + 1 == n_batches:
            optimizer.step()
            optimizer.zero_grad()
    print(f"epoch {epoch} loss {total / n_batches:.4f}")
