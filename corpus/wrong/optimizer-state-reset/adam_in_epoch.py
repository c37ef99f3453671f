"""Adam is made anew in every epoch, so its moments and its bias correction start over each time."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)

n_epochs = 4
batch_size = 32
learning_rate = 0.01

x = torch.linspace(-3, 3, 256).unsqueeze(1)
y = torch.sin(2 * x) + 0.1 * torch.randn_like(x)
loader = DataLoader(TensorDataset(x, y), batch_size=batch_size, shuffle=True)


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, x):
        return self.net(x)


model = MLP()
loss_fn = nn.MSELoss()

for epoch in range(n_epochs):
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)  # expect: optimizer-state-reset
    model.train()
    total = 0.0
    for xb, yb in loader:
        pred = model(xb)
        loss = loss_fn(pred, yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch + 1}/{n_epochs}  loss {total / len(loader):.4f}")
