"""The plain step was left in when the scaler was added: the first of two steps is 4096 times too large."""

import torch
import torch.nn as nn

torch.manual_seed(1)

net = nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 4))
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
criterion = nn.CrossEntropyLoss()
x = torch.randn(240, 12)
y = (x @ torch.randn(12, 4)).argmax(dim=1)

for epoch in range(2):
    total = 0.0
    for batch in torch.randperm(240).split(24):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = criterion(net(x[batch]), y[batch])
        scaler.scale(loss).backward()
        optimizer.step()  # expect: amp-scaler-misuse
        scaler.step(optimizer)
        scaler.update()
        total += loss.item()
    print(f"epoch {epoch} loss {total / 10:.3f}")
