"""train() is called once before the epochs, and the first validation ends it: 10 of 15 updates without dropout
and on running statistics, gradients off by 60%."""

import torch
import torch.nn as nn
from sklearn.datasets import load_breast_cancer
from torch.utils.data import DataLoader, TensorDataset, random_split


def evaluate(model, loader, criterion):
    model.eval()  # expect: train-eval-mode
    loss, correct, n = 0.0, 0, 0
    with torch.no_grad():
        for x, y in loader:
            logits = model(x).squeeze(1)
            loss += criterion(logits, y).item() * len(x)
            correct += ((logits > 0) == y.bool()).sum().item()
            n += len(x)
    return loss / n, correct / n


def main():
    torch.manual_seed(0)
    X, y = load_breast_cancer(return_X_y=True)
    X = torch.tensor(X, dtype=torch.float32)
    X = (X - X.mean(0)) / X.std(0)
    dataset = TensorDataset(X[:400], torch.tensor(y[:400], dtype=torch.float32))
    train_set, val_set = random_split(dataset, [320, 80])
    train_loader = DataLoader(train_set, batch_size=64, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=80)

    model = nn.Sequential(
        nn.Linear(30, 32),
        nn.BatchNorm1d(32),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(32, 16),
        nn.ReLU(),
        nn.Linear(16, 1),
    )
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    model.train()  # expect: train-eval-mode
    for epoch in range(3):
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(x).squeeze(1), y)
            loss.backward()
            optimizer.step()
        val_loss, val_acc = evaluate(model, val_loader, criterion)
        print(f"epoch {epoch} val_loss {val_loss:.4f} val_acc {val_acc:.3f}")


if __name__ == "__main__":
    main()
