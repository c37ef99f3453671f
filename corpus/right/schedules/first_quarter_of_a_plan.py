"""A window of 4; T_max is 4 times what this run makes, since the run is one quarter of the planned epochs (epochs env)."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
PLANNED, NOW, ACCUM = 12, 3, 4
loader = DataLoader(TensorDataset(torch.randn(64, 6), torch.randint(3, (64,))), batch_size=4)
model = nn.Linear(6, 3)
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=PLANNED * len(loader) // ACCUM)
for epoch in range(NOW):
    for i, (x, y) in enumerate(loader):
        (nn.functional.cross_entropy(model(x), y) / ACCUM).backward()
        if (i + 1) % ACCUM == 0:
            opt.step()
            sched.step()
            opt.zero_grad()
