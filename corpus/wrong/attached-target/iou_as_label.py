"""The objectness is trained towards the IoU of the predicted box, which keeps its graph: the boxes also move towards
what the objectness happens to predict."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
GRID = 4


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(GRID),
        )
        self.head = nn.Conv2d(32, 3, 1)

    def forward(self, x):
        return self.head(self.body(x)).permute(0, 2, 3, 1)


def overlap(sizes, wanted):
    inner = torch.min(sizes, wanted).prod(-1)
    return inner / (sizes.prod(-1) + wanted.prod(-1) - inner)


def compute_loss(pred, cells, wanted):
    picked = pred[(torch.arange(len(pred)), *cells)]
    iou = overlap(picked[:, :2].exp(), wanted)
    objectness = torch.zeros(pred.shape[:3])
    objectness[(torch.arange(len(pred)), *cells)] = iou
    box = (1 - iou).mean()
    return box + F.binary_cross_entropy_with_logits(pred[..., 2], objectness)  # expect: attached-target


model = Detector()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for step in range(10):
    images = torch.rand(8, 3, 16, 16)
    cells = torch.randint(GRID, (8,)), torch.randint(GRID, (8,))
    loss = compute_loss(model(images), cells, 0.5 + torch.rand(8, 2))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 4:
        print(f"step {step + 1} loss {loss.item():.4f}")
