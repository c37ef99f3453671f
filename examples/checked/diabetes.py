"""Predict how diabetes progresses in a year, for 442 patients: the data set comes with scikit-learn."""

import torch
from sklearn.datasets import load_diabetes
from torch import nn

torch.manual_seed(0)
x, y = load_diabetes(return_X_y=True)
x = torch.tensor(20 * x, dtype=torch.float32)
y = torch.tensor((y - y.mean()) / y.std(), dtype=torch.float32)
order = torch.randperm(len(x))
train, test = order[:350], order[350:]

model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for epoch in range(1, 41):
    for rows in train[torch.randperm(len(train))].split(32):
        loss = ((model(x[rows]) - y[rows]) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if epoch % 10 == 0:
        with torch.no_grad():
            error = (model(x[test]).squeeze(1) - y[test]).square().mean()
        print(f"epoch {epoch}: loss {loss.item():.2f}, R2 {1 - error / y[test].var():.2f} on the test set")
