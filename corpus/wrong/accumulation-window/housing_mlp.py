"""The flush compares with a step that never comes, so the two micro-batches left over of an epoch go into the
next one's first window: six divided by four, 3 updates in place of 6, a gradient off by 40 %.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(11)
g = torch.Generator().manual_seed(11)

# synthetic "housing" table
X = torch.randn(96, 8, generator=g)
w = torch.randn(8, 1, generator=g)
y = X @ w + 0.5 * (X[:, :1] * X[:, 1:2]) + 0.1 * torch.randn(96, 1, generator=g)
train_loader = DataLoader(TensorDataset(X, y), batch_size=16, shuffle=False)

model = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
mse = nn.MSELoss()
accum = 4

for epoch in range(3):
    epoch_loss = 0.0
    in_window = 0
    for step, (xb, yb) in enumerate(train_loader):
        loss = mse(model(xb), yb)
        loss.backward()
        in_window += 1
        epoch_loss += loss.item()
        if in_window == accum or step == len(train_loader):  # expect: accumulation-window
            for p in model.parameters():
                p.grad /= in_window
            optimizer.step()
            optimizer.zero_grad()
            in_window = 0
    print(f"epoch {epoch + 1} mse {epoch_loss / len(train_loader):.4f}")
