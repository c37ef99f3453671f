"""Of three scales of each image, the loss of the last one is back-propagated: `loss =` stands where `loss +=` was
meant, and nothing divides."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(
    nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 2)
)
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
for step in range(16):
    y = torch.randint(2, (24,))
    images = torch.randn(24, 1, 12, 12) + y[:, None, None, None] * torch.linspace(-1, 1, 12)
    running = 0.0
    for size in (8, 12, 16):
        scaled = F.interpolate(images, size=(size, size), mode="bilinear", align_corners=False)
        loss = F.cross_entropy(net(scaled), y)  # expect: term-left-out
        running += loss.item()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"step {step}: {running / 3:.4f}")
