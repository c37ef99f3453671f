"""The list of losses keeps each of them with its graph until the end of the run: 150 nodes after 16 updates,
where 15 would do."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(15)

X = torch.randn(256, 32)
w_true = torch.randn(32)
Y = (torch.tanh(X) @ w_true).unsqueeze(1) + 0.1 * torch.randn(256, 1)
dl = DataLoader(TensorDataset(X, Y), batch_size=32, shuffle=True)

model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
loss_func = nn.MSELoss()

train_losses, epoch_means = [], []
for epoch in range(2):
    model.train()
    for xb, yb in dl:
        pred = model(xb)
        loss = loss_func(pred, yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        train_losses.append(loss)  # expect: graph-retention
    recent = torch.stack(train_losses[-len(dl) :])
    epoch_means.append(recent.mean().item())
    print(f"epoch {epoch}: {epoch_means[-1]:.4f}")

print("best batch:", round(min(t.item() for t in train_losses), 4))
