"""The model is put into training mode once before the loop and validation leaves it in eval mode, so from the second epoch on dropout and BatchNorm are off."""

import copy

import torch
import torch.nn as nn
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch.utils.data import DataLoader, TensorDataset


def to_dataset(x, y):
    return TensorDataset(torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32))


def load_data(seed):
    x, y = load_breast_cancer(return_X_y=True)
    x_train, x_val, y_train, y_val = train_test_split(x, y, test_size=169, random_state=seed, stratify=y)
    scaler = StandardScaler().fit(x_train)
    return to_dataset(scaler.transform(x_train), y_train), to_dataset(scaler.transform(x_val), y_val)


def build(n_in, width=32, p=0.3):
    return nn.Sequential(
        nn.Linear(n_in, width),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Dropout(p),
        nn.Linear(width, width),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Dropout(p),
        nn.Linear(width, 1),
        nn.Flatten(0),
    )


class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.bad, self.best, self.state = patience, 0, float("inf"), None

    def __call__(self, value, model):
        if value < self.best:
            self.best, self.bad = value, 0
            self.state = copy.deepcopy(model.state_dict())
        else:
            self.bad += 1
        return self.bad >= self.patience


def validate(model, loader, criterion):
    model.eval()  # expect: train-eval-mode
    total, n = 0.0, 0
    with torch.no_grad():
        for x, y in loader:
            total += criterion(model(x), y).item() * len(x)
            n += len(x)
    return total / n


def fit(model, train_loader, val_loader, max_epochs=3):
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    stopper = EarlyStopping(patience=2)
    model.train()  # expect: train-eval-mode
    for epoch in range(max_epochs):
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
        val = validate(model, val_loader, criterion)
        print(f"epoch {epoch} train {loss.item():.4f} val {val:.4f}")
        if stopper(val, model):
            break
    model.load_state_dict(stopper.state)
    return model


if __name__ == "__main__":
    torch.manual_seed(30)
    torch.set_num_threads(1)
    train_set, val_set = load_data(seed=30)
    fit(build(30), DataLoader(train_set, batch_size=40, shuffle=True), DataLoader(val_set, batch_size=169))
