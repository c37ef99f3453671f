"""Digits MLP. The call to zero_grad sits after the step, at the end of the loop body;
that is as good as having it before backward."""
import numpy as np
import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

torch.manual_seed(0)
np.random.seed(0)

X, y = load_digits(return_X_y=True)
X = X / 16.0
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.25, random_state=0)
X_train = torch.tensor(X_train, dtype=torch.float32)
X_test = torch.tensor(X_test, dtype=torch.float32)
y_train = torch.tensor(y_train)
y_test = torch.tensor(y_test)

net = nn.Sequential(
    nn.Linear(64, 48),
    nn.ReLU(),
    nn.Linear(48, 10),
)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)

batch_size = 128
n = len(X_train)
history = []

for epoch in range(3):
    perm = torch.randperm(n)
    running = 0.0
    for start in range(0, n, batch_size):
        idx = perm[start:start + batch_size]
        logits = net(X_train[idx])
        loss = criterion(logits, y_train[idx])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        running += loss.item() * len(idx)
    history.append(running / n)

net.eval()
with torch.no_grad():
    acc = (net(X_test).argmax(1) == y_test).float().mean().item()
print("train loss per epoch:", [round(h, 4) for h in history])
print(f"test accuracy: {acc:.3f}")
