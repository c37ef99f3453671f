"""Regression on the diabetes data. The model returns a column and the targets are a vector; the
column is squeezed in the loss."""
import warnings
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_diabetes
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
torch.manual_seed(42)

raw = load_diabetes()
features = torch.tensor(raw.data, dtype=torch.float32) * 20
target = torch.tensor(raw.target, dtype=torch.float32)
target = (target - target.mean()) / target.std()

split = 350
train_set = TensorDataset(features[:split], target[:split])
loader = DataLoader(train_set, batch_size=50, shuffle=True)

model = nn.Sequential(
    nn.Linear(10, 32),
    nn.SiLU(),
    nn.Linear(32, 1),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1e-3)


def run_epoch():
    total = 0.0
    for xb, yb in loader:
        optimizer.zero_grad()
        pred = model(xb)
        loss = F.mse_loss(pred.squeeze(-1), yb)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(xb)
    return total / split


@torch.no_grad()
def r2(x, y):
    p = model(x).flatten()
    return (1 - ((p - y) ** 2).sum() / ((y - y.mean()) ** 2).sum()).item()


for epoch in range(5):
    train_loss = run_epoch()
    print(f"epoch {epoch}  mse {train_loss:.4f}  val R2 {r2(features[split:], target[split:]):.3f}")
