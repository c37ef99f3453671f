"""Linear probe on a frozen backbone. The model is put into train mode and the backbone is put
back to eval right after, so that its batch norm layers stay as they are."""
import torch
from torch import nn

CONFIG = {"epochs": 4, "batch": 32, "lr": 0.05, "dim": 10, "hidden": 20, "classes": 3, "seed": 5}


class Backbone(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.l1 = nn.Linear(dim, hidden)
        self.bn1 = nn.BatchNorm1d(hidden)
        self.l2 = nn.Linear(hidden, hidden)
        self.bn2 = nn.BatchNorm1d(hidden)

    def forward(self, x):
        x = torch.relu(self.bn1(self.l1(x)))
        return torch.relu(self.bn2(self.l2(x)))


class Probe(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.backbone = Backbone(cfg["dim"], cfg["hidden"])
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(cfg["hidden"], cfg["classes"])

    def forward(self, x):
        return self.head(self.dropout(self.backbone(x)))


def make_task(cfg, shift):
    x = torch.randn(160, cfg["dim"]) * 1.5 + shift
    w = torch.randn(cfg["dim"], cfg["classes"])
    return x, (x @ w).argmax(1)


def run(cfg):
    torch.manual_seed(cfg["seed"])
    model = Probe(cfg)

    # stands in for pretraining: gives the batch norm layers statistics
    with torch.no_grad():
        for _ in range(20):
            model(torch.randn(64, cfg["dim"]))

    for p in model.backbone.parameters():
        p.requires_grad_(False)
    optimizer = torch.optim.SGD(model.head.parameters(), lr=cfg["lr"], momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    x, y = make_task(cfg, shift=0.8)

    for epoch in range(cfg["epochs"]):
        model.train()
        model.backbone.eval()
        total = 0.0
        for i in range(0, len(x), cfg["batch"]):
            xb, yb = x[i:i + cfg["batch"]], y[i:i + cfg["batch"]]
            optimizer.zero_grad()
            loss = criterion(model(xb), yb)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(xb)
        model.eval()
        with torch.no_grad():
            acc = (model(x).argmax(1) == y).float().mean()
        print(f"epoch {epoch}: loss {total / len(x):.4f}  acc {acc:.3f}")


run(CONFIG)
