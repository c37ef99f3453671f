"""Train a small network on handwritten digits, in micro-batches of 16, four to an update."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATE = 4

torch.manual_seed(0)
x, y = load_digits(return_X_y=True)
data = TensorDataset(torch.tensor(x[:480] / 16, dtype=torch.float32), torch.tensor(y[:480]))
loader = DataLoader(data, batch_size=16, shuffle=True)

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)

for epoch in range(3):
    total = 0.0
    optimizer.zero_grad()
    for i, (images, labels) in enumerate(loader):
        loss = F.cross_entropy(model(images), labels)
        (loss / min(ACCUMULATE, len(loader) - i // ACCUMULATE * ACCUMULATE)).backward()
        total += loss.item()
        if (i + 1) % ACCUMULATE == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
    print(f"epoch {epoch}: loss {total / len(loader):.3f}")
