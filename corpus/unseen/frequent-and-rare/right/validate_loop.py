"""Training with validation after every epoch. The switch back to train mode is at the top of the
epoch loop and not at the end of the validation."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits

SEED = 19
EPOCHS = 4
BATCH = 150


def build():
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(96, 10),
    )


def load():
    d = load_digits()
    x = torch.tensor(d.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(d.target)
    g = torch.Generator().manual_seed(SEED)
    order = torch.randperm(len(x), generator=g)
    x, y = x[order], y[order]
    return (x[:1200], y[:1200]), (x[1200:], y[1200:])


def evaluate(model, x, y):
    model.eval()
    with torch.no_grad():
        logits = model(x)
        return F.cross_entropy(logits, y).item(), (logits.argmax(1) == y).float().mean().item()


def train():
    torch.manual_seed(SEED)
    (xt, yt), (xv, yv) = load()
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    best = 0.0
    for epoch in range(EPOCHS):
        model.train()
        order = torch.randperm(len(xt))
        for idx in order.split(BATCH):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(xt[idx]), yt[idx])
            loss.backward()
            optimizer.step()
        val_loss, val_acc = evaluate(model, xv, yv)
        best = max(best, val_acc)
        print(f"epoch {epoch}  val loss {val_loss:.4f}  val acc {val_acc:.3f}")
    print(f"best {best:.3f}")


train()
