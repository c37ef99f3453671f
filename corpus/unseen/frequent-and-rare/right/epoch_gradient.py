"""Full-batch descent on data that is read in batches. Gradients pile up over the epoch on purpose,
with one step and one clear per epoch, and the warm-up counts these steps."""
import torch
import torch.nn as nn
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(261)

raw = load_breast_cancer()
x = torch.tensor(StandardScaler().fit_transform(raw.data), dtype=torch.float32)
y = torch.tensor(raw.target, dtype=torch.float32).unsqueeze(1)
data = TensorDataset(x, y)
loader = DataLoader(data, batch_size=128)

model = nn.Sequential(nn.Linear(30, 12), nn.Tanh(), nn.Linear(12, 1))
criterion = nn.BCEWithLogitsLoss(reduction="none")
optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, nesterov=True)
warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min(1.0, (k + 1) / 5))


def accumulate_epoch():
    value = 0.0
    for xb, yb in loader:
        loss = criterion(model(xb), yb).sum() / len(data)
        loss.backward()
        value += loss.item()
    return value


previous = float("inf")
for epoch in range(12):
    value = accumulate_epoch()
    gnorm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()
    optimizer.step()
    warmup.step()
    model.zero_grad()
    trend = "down" if value < previous else "up"
    previous = value
    if epoch % 3 == 0:
        print(f"epoch {epoch:2d}  loss {value:.5f} ({trend})  gradient norm {gnorm:.4f}")

with torch.no_grad():
    acc = ((model(x) > 0).float() == y).float().mean().item()
print(f"training accuracy {acc:.4f}")
