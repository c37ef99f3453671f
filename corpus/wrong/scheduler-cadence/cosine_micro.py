"""T_max counts micro-batches; the schedule advances once per window of 4."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
EPOCHS, ACCUM = 3, 4
loader = DataLoader(TensorDataset(torch.randn(64, 6), torch.randint(3, (64,))), batch_size=4)
model = nn.Linear(6, 3)
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(
    opt, T_max=EPOCHS * len(loader)
)  # expect: scheduler-cadence
for epoch in range(EPOCHS):
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y) / ACCUM
        loss.backward()
        if (i + 1) % ACCUM == 0:
            opt.step()
            sched.step()
            opt.zero_grad()
