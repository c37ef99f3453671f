"""Some schedulers are stepped per batch, some per epoch and one with a metric: each in the cadence that it is meant
for."""

import torch
import torch.nn as nn
from torch.optim import lr_scheduler as S

EPOCHS, N, BATCH = 3, 160, 20
PER_EPOCH = N // BATCH
torch.manual_seed(0)
x = torch.randn(N, 6)
y = (x[:, 0] > x[:, 1] * x[:, 2]).long()

setups = {
    "step/epoch": (lambda o: S.StepLR(o, 1, gamma=0.5), "epoch"),
    "cosine/batch": (lambda o: S.CosineAnnealingLR(o, T_max=EPOCHS * PER_EPOCH), "batch"),
    "onecycle/batch": (lambda o: S.OneCycleLR(o, max_lr=0.1, total_steps=EPOCHS * PER_EPOCH), "batch"),
    "plateau/metric": (lambda o: S.ReduceLROnPlateau(o, patience=0, factor=0.3), "metric"),
    "restarts/fraction": (lambda o: S.CosineAnnealingWarmRestarts(o, T_0=1), "fraction"),
    "sequential/epoch": (
        lambda o: S.SequentialLR(o, [S.ConstantLR(o, 0.1, 1), S.ExponentialLR(o, 0.8)], [1]),
        "epoch",
    ),
}

for name, (make, cadence) in setups.items():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sched = make(opt)
    for epoch in range(EPOCHS):
        epoch_loss = 0.0
        for i, idx in enumerate(torch.randperm(N).split(BATCH)):
            loss = nn.functional.cross_entropy(model(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
            epoch_loss += loss.item() / PER_EPOCH
            if cadence == "batch":
                sched.step()
            elif cadence == "fraction":
                sched.step(epoch + (i + 1) / PER_EPOCH)
        if cadence == "epoch":
            sched.step()
        elif cadence == "metric":
            sched.step(epoch_loss)
    print(f"{name:18s} loss {epoch_loss:.4f}")
