"""`model.train()` is called before the loop only; after the first validation, dropout and BatchNorm stay in evaluation
mode for all later epochs."""

import torch
import torch.nn as nn
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

torch.manual_seed(0)
X, y = load_breast_cancer(return_X_y=True)
X_tr, X_va, y_tr, y_va = train_test_split(X, y, random_state=0, stratify=y)
mean, std = X_tr.mean(0), X_tr.std(0)
X_tr, X_va = (torch.tensor((a - mean) / std, dtype=torch.float32) for a in (X_tr, X_va))
y_tr, y_va = torch.tensor(y_tr), torch.tensor(y_va)

model = nn.Sequential(
    nn.Linear(30, 32),
    nn.BatchNorm1d(32),
    nn.ReLU(),
    nn.Dropout(0.3),
    nn.Linear(32, 16),
    nn.BatchNorm1d(16),
    nn.ReLU(),
    nn.Dropout(0.3),
    nn.Linear(16, 2),
)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
loss_fn = nn.CrossEntropyLoss()


def validate():
    model.eval()  # expect: train-eval-mode
    with torch.no_grad():
        out = model(X_va)
        return loss_fn(out, y_va).item(), (out.argmax(1) == y_va).float().mean().item()


model.train()
for epoch in range(4):  # expect: train-eval-mode
    for idx in torch.randperm(len(X_tr)).split(42):
        if len(idx) < 2:
            continue
        optimizer.zero_grad()
        loss = loss_fn(model(X_tr[idx]), y_tr[idx])
        loss.backward()
        optimizer.step()
    val_loss, val_acc = validate()
    print(f"epoch {epoch} train {loss.item():.4f} val {val_loss:.4f} acc {val_acc:.4f}")
