"""Wine classifier with a step schedule meant in epochs, stepped once per epoch, after the
validation rather than next to the optimizer."""
import torch
import torch.nn as nn
from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

cfg = dict(
    seed=17,
    hidden=24,
    lr=0.05,
    batch_size=20,
    max_epochs=5,
    lr_decay_every_epochs=2,
    lr_decay=0.3,
)

torch.manual_seed(cfg["seed"])

X, y = load_wine(return_X_y=True)
X_tr, X_va, y_tr, y_va = train_test_split(X, y, test_size=0.3, random_state=cfg["seed"], stratify=y)
scaler = StandardScaler().fit(X_tr)
X_tr = torch.tensor(scaler.transform(X_tr), dtype=torch.float32)
X_va = torch.tensor(scaler.transform(X_va), dtype=torch.float32)
y_tr, y_va = torch.tensor(y_tr), torch.tensor(y_va)

train_loader = DataLoader(TensorDataset(X_tr, y_tr), batch_size=cfg["batch_size"], shuffle=True)

model = nn.Sequential(
    nn.Linear(13, cfg["hidden"]),
    nn.Tanh(),
    nn.Linear(cfg["hidden"], 3),
)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=cfg["lr"], momentum=0.8)
scheduler = StepLR(optimizer, step_size=cfg["lr_decay_every_epochs"], gamma=cfg["lr_decay"])

for epoch in range(cfg["max_epochs"]):
    model.train()
    epoch_loss = 0.0
    for xb, yb in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(xb), yb)
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item() * len(xb)
    model.eval()
    with torch.no_grad():
        val_acc = (model(X_va).argmax(1) == y_va).float().mean().item()
    scheduler.step()
    print(f"epoch {epoch}  loss {epoch_loss / len(X_tr):.4f}  val acc {val_acc:.3f}")
