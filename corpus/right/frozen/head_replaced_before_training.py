"""Looks like a stale optimizer: two heads and one whole model are thrown away again, but before the
optimizer that trains was made."""

import torch
from torch import nn
from torch.nn import functional as F

HPARAMS = {"width": 20, "lr": 0.01, "epochs": 2, "batch": 25}


class Net(nn.Module):
    def __init__(self, width, n_classes=1000):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(12, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.fc = nn.Linear(width, n_classes)

    def forward(self, x):
        return self.fc(self.features(x))


def load_pretrained(width):
    checkpoint = {k: v * 0.9 for k, v in Net(width).state_dict().items()}
    model = Net(width)
    model.load_state_dict(checkpoint)
    return model


def build(hp, n_classes):
    model = load_pretrained(hp["width"])
    model.fc = nn.Linear(hp["width"], 50)  # the head of the intermediate task
    model.fc = nn.Sequential(nn.Dropout(0.1), nn.Linear(hp["width"], n_classes))
    nn.init.zeros_(model.fc[1].bias)
    return model


def find_width(x):
    for width in (64, 40, HPARAMS["width"]):
        probe = Net(width)
        opt = torch.optim.Adam(probe.parameters())
        if sum(p.numel() for g in opt.param_groups for p in g["params"]) < 25000:
            return width
    return HPARAMS["width"]


torch.manual_seed(4)
x = torch.randn(100, 12)
y = x[:, :3].argmax(1)
HPARAMS["width"] = find_width(x)
model = build(HPARAMS, n_classes=3)
opt = torch.optim.Adam(model.parameters(), lr=HPARAMS["lr"])
for epoch in range(HPARAMS["epochs"]):
    for xb, yb in zip(x.split(HPARAMS["batch"]), y.split(HPARAMS["batch"])):
        loss = F.cross_entropy(model(xb), yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"width {HPARAMS['width']} epoch {epoch} loss {loss.item():.4f}")
