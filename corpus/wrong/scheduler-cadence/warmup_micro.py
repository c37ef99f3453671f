"""The warm-up is counted in updates, but the scheduler also advances on the micro-batches without one: the rate is
back down at zero after a fourth of the run."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.lr_scheduler import LambdaLR

torch.manual_seed(8)

x = torch.randn(256, 16)
y = (x[:, :4].sum(1) * x[:, 4] > 0).long()

EPOCHS, MICRO, ACCUM = 3, 16, 4
updates_per_epoch = len(x) // (MICRO * ACCUM)
num_training_steps = EPOCHS * updates_per_epoch
num_warmup_steps = 2


def lr_lambda(current_step):
    if current_step < num_warmup_steps:
        return (current_step + 1) / (num_warmup_steps + 1)
    return max(0.0, (num_training_steps - current_step) / (num_training_steps - num_warmup_steps))


model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
scheduler = LambdaLR(optimizer, lr_lambda)

completed_steps = 0
for epoch in range(EPOCHS):
    perm = torch.randperm(len(x))
    for step, idx in enumerate(perm.split(MICRO)):
        loss = F.cross_entropy(model(x[idx]), y[idx])
        loss = loss / ACCUM
        loss.backward()
        if (step + 1) % ACCUM == 0:
            optimizer.step()
            optimizer.zero_grad()
            completed_steps += 1
        scheduler.step()  # expect: scheduler-cadence
    print(f"epoch {epoch} steps {completed_steps} loss {loss.item() * ACCUM:.4f}")
