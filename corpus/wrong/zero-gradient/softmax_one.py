"""A softmax over the single output is 1 for each row, so the loss is constant and every gradient is exactly zero."""

import torch
import torch.nn as nn
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
X, y = load_breast_cancer(return_X_y=True)
X = (X - X.mean(0)) / X.std(0)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.2, random_state=0)
to = lambda a: torch.tensor(a, dtype=torch.float32)
train_dl = DataLoader(TensorDataset(to(X_train), to(y_train)), batch_size=64, shuffle=True)


class BinaryClassifier(nn.Module):
    def __init__(self, num_features):
        super().__init__()
        self.layer_1 = nn.Linear(num_features, 32)
        self.layer_2 = nn.Linear(32, 16)
        self.layer_out = nn.Linear(16, 1)
        self.relu = nn.ReLU()
        self.softmax = nn.Softmax(dim=1)

    def forward(self, inputs):
        x = self.relu(self.layer_1(inputs))
        x = self.relu(self.layer_2(x))
        return self.softmax(self.layer_out(x))  # expect: zero-gradient


model = BinaryClassifier(30)
criterion = nn.BCELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)

for e in range(1, 4):
    epoch_loss = 0
    for X_batch, y_batch in train_dl:
        optimizer.zero_grad()
        y_pred = model(X_batch)
        loss = criterion(y_pred.squeeze(1), y_batch)
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item()
    with torch.no_grad():
        acc = ((model(to(X_test)).squeeze(1) > 0.5).float() == to(y_test)).float().mean()
    print(f"Epoch {e:03}: | Loss: {epoch_loss / len(train_dl):.5f} | Acc: {acc:.3f}")
