"""Two optimizers share one scaler and one update per iteration, with unscale_ and clipping for the first only."""

import torch
import torch.nn as nn

torch.manual_seed(0)
body = nn.Sequential(nn.Linear(10, 32), nn.ReLU())
head = nn.Linear(32, 3)
opt_body = torch.optim.SGD(body.parameters(), lr=0.1, momentum=0.9)
opt_head = torch.optim.AdamW(head.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", growth_interval=8)
x = torch.randn(320, 10)
y = x[:, :3].argmax(1)
ACCUM = 2

for epoch in range(2):
    for i, idx in enumerate(torch.randperm(320).split(20)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(head(body(x[idx])), y[idx]) / ACCUM
        scaler.scale(loss).backward()
        if (i + 1) % ACCUM == 0:
            scaler.unscale_(opt_body)
            nn.utils.clip_grad_norm_(body.parameters(), 0.5)
            scaler.step(opt_body)
            scaler.step(opt_head)
            scaler.update()
            opt_body.zero_grad()
            opt_head.zero_grad()
    print(f"epoch {epoch} loss {ACCUM * loss.item():.4f} scale {scaler.get_scale():.0f}")
