"""The objectness is trained towards the IoU of the predicted box, which is detached; the box loss keeps its graph."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
body = nn.Sequential(nn.Linear(10, 32), nn.ReLU())
head = nn.Linear(32, 3)
optimizer = torch.optim.AdamW([*body.parameters(), *head.parameters()], lr=2e-3)
for step in range(12):
    x = torch.randn(32, 10)
    wanted = 0.5 + x[:, :2].abs()
    out = head(body(x))
    sizes = out[:, :2].exp()
    inner = torch.min(sizes, wanted).prod(1)
    iou = inner / (sizes.prod(1) + wanted.prod(1) - inner)
    seen = torch.arange(0, 32, 2)
    target = torch.zeros(32)
    target[seen] = iou.detach()[seen]
    loss = (1 - iou[seen]).mean() + F.binary_cross_entropy_with_logits(out[:, 2], target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")
