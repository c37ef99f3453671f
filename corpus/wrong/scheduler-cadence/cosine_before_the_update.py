"""A cosine over all updates, advanced between backward and the update: no update uses the first rate, and the last
uses zero."""

import torch
import torch.nn.functional as F

torch.manual_seed(8)
UPDATES = 30
points = torch.rand(256, 2) * 2 - 1
inside = (points.norm(dim=1) < 0.7).float()
w1 = torch.nn.Parameter(torch.randn(2, 16) * 0.5)
b1 = torch.nn.Parameter(torch.zeros(16))
w2 = torch.nn.Parameter(torch.randn(16) * 0.3)
adam = torch.optim.Adam([w1, b1, w2], lr=0.02)
cosine = torch.optim.lr_scheduler.CosineAnnealingLR(adam, UPDATES)
for _ in range(UPDATES):
    rows = torch.randint(0, 256, (32,))
    logits = torch.tanh(points[rows] @ w1 + b1) @ w2
    adam.zero_grad()
    F.binary_cross_entropy_with_logits(logits, inside[rows]).backward()
    cosine.step()  # expect: scheduler-cadence
    adam.step()
print(cosine.get_last_lr())
