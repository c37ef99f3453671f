"""The linear warm-up and decay of fine-tuning scripts, with a total counted in batches."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


def get_linear_schedule(optimizer, warmup, total):
    def scale(step):
        if step < warmup:
            return step / max(1, warmup)
        return max(0.0, (total - step) / max(1, total - warmup))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, scale)


class Config:
    epochs = 3
    accumulation = 4
    lr = 5e-3


cfg = Config()
loader = DataLoader(TensorDataset(torch.randn(96, 6), torch.randint(3, (96,))), batch_size=4)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
total_steps = len(loader) * cfg.epochs  # expect: scheduler-cadence
scheduler = get_linear_schedule(optimizer, int(0.1 * total_steps), total_steps)
for epoch in range(cfg.epochs):
    for step, (x, y) in enumerate(loader, 1):
        loss = nn.functional.cross_entropy(model(x), y)
        (loss / cfg.accumulation).backward()
        if step % cfg.accumulation == 0:
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
