"""The loss tensors themselves are summed over the epoch, so the graphs' remains of all batches are kept alive until its
end."""

import torch
from sklearn.datasets import load_wine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
wine = load_wine()
X = torch.tensor(wine.data, dtype=torch.float32)
X = (X - X.mean(0)) / X.std(0)
y = torch.tensor(wine.target)
train_dataset = TensorDataset(X[::2], y[::2])
test_dataset = TensorDataset(X[1::2], y[1::2])
train_loader = DataLoader(train_dataset, batch_size=10, shuffle=True)
test_loader = DataLoader(test_dataset, batch_size=30)

model = nn.Sequential(nn.Linear(13, 24), nn.ReLU(), nn.Linear(24, 3))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def evaluate():
    model.eval()
    hits = 0
    with torch.no_grad():
        for inputs, labels in test_loader:
            hits += (model(inputs).argmax(1) == labels).sum().item()
    return hits / len(test_dataset)


for epoch in range(3):
    model.train()
    running_loss = 0.0
    for inputs, labels in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        loss.backward()
        optimizer.step()
        running_loss += loss  # expect: graph-retention
    print(f"epoch {epoch}: loss {running_loss / len(train_loader):.4f} test acc {evaluate():.3f}")
