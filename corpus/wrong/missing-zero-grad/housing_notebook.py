"""The gradients are never cleared, so each update follows the sum of all gradients since the start."""

# %%
import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
rng = np.random.default_rng(0)

# %%
area = rng.uniform(30, 200, 300)
rooms = np.round(area / 30 + rng.normal(0, 0.5, 300))
age = rng.uniform(0, 80, 300)
price = 2.5 * area + 15 * rooms - 0.8 * age + rng.normal(0, 10, 300)
X = np.stack([area, rooms, age], 1)
X = (X - X.mean(0)) / X.std(0)
Y = (price - price.mean()) / price.std()
X = torch.tensor(X, dtype=torch.float32)
Y = torch.tensor(Y, dtype=torch.float32).view(-1, 1)

# %%
model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
loss_fn = nn.MSELoss()

# %%
batch = 30
for epoch in range(3):
    for i in range(0, len(X), batch):
        pred = model(X[i : i + batch])
        loss = loss_fn(pred, Y[i : i + batch])
        loss.backward()  # expect: missing-zero-grad
        optimizer.step()  # expect: missing-zero-grad
    print(f"epoch {epoch}, loss {loss.item():.4f}")
