"""The residual layers stand in a plain Python list, so model.parameters() does not name them and the optimizer trains
only the first and the last layer."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


class ResMLP(nn.Module):
    def __init__(self, n_in, width, depth, n_out):
        super().__init__()
        self.inp = nn.Linear(n_in, width)
        self.layers = [nn.Linear(width, width) for _ in range(depth)]  # expect: param-not-in-optimizer
        self.outp = nn.Linear(width, n_out)

    def forward(self, x):
        x = self.inp(x)
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return self.outp(x)


x = torch.rand(400, 2) * 4 - 2
y = (torch.sin(3 * x[:, :1]) * torch.cos(2 * x[:, 1:])).float()
train_loader = DataLoader(TensorDataset(x, y), batch_size=40, shuffle=True)

model = ResMLP(2, 32, 3, 1)
print(f"{sum(p.numel() for p in model.parameters())} parameters")
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
mse = nn.MSELoss()

for epoch in range(4):
    running = 0.0
    for xb, yb in train_loader:
        optimizer.zero_grad()
        loss = mse(model(xb), yb)
        loss.backward()
        optimizer.step()
        running += loss.item()
    print(f"epoch {epoch} mse {running / len(train_loader):.4f}")
