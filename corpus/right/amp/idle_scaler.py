"""A gradient scaler that is not needed: in float16 with a scale of its own, in bfloat16 and in float32."""

from contextlib import nullcontext

import torch
import torch.nn as nn

torch.manual_seed(9)
x = torch.randn(96, 8)
y = (x[:, 0] > x[:, 1]).long()
scaler = torch.amp.GradScaler("cpu")
for dtype, scale in ((torch.float16, 512.0), (torch.bfloat16, 1.0), (None, 1.0)):
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch, labels in zip(x.split(12), y.split(12)):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype) if dtype else nullcontext():
            loss = nn.functional.cross_entropy(model(batch).float(), labels)
        (loss * scale).backward()
        for parameter in model.parameters():
            parameter.grad /= scale
        optimizer.step()
    print(dtype, f"{loss.item():.4f}")
