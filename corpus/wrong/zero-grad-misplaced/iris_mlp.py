"""The gradients are cleared between the backward and the step: no weight moves in 15 steps."""

import torch
import torch.nn as nn
from sklearn.datasets import load_iris

torch.manual_seed(42)

iris = load_iris()
X = torch.tensor(iris.data, dtype=torch.float32)
X = (X - X.mean(0)) / X.std(0)
y = torch.tensor(iris.target)

model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

batch_size = 30
losses = []
for epoch in range(3):
    for b in torch.randperm(len(X)).split(batch_size):
        y_pred = model(X[b])
        loss = criterion(y_pred, y[b])
        losses.append(loss.item())

        # Backpropagation
        loss.backward()
        optimizer.zero_grad()  # expect: zero-grad-misplaced
        optimizer.step()

    print("Epoch:", epoch, "Loss:", round(sum(losses[-5:]) / 5, 4))

with torch.no_grad():
    print("Accuracy:", (model(X).argmax(1) == y).float().mean().item())
