"""The location head's output is computed, but its loss is left out of the total, so the head gets no gradient."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(23)


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.cls_head = nn.Linear(64, 2)
        self.box_head = nn.Linear(64, 2)

    def forward(self, img):
        feats = self.backbone(img)
        return self.cls_head(feats), self.box_head(feats)


class DetectionLoss:
    def __init__(self, box_weight=2.0):
        self.box_weight = box_weight

    def __call__(self, scores, boxes, cls_t, box_t):
        cls_loss = F.cross_entropy(scores, cls_t)
        box_loss = self.box_weight * F.smooth_l1_loss(boxes, box_t)
        loss = cls_loss  # expect: unreached-parameter
        return loss, {"cls": cls_loss.item(), "box": box_loss.item()}


def sample(n):
    cls = torch.randint(0, 2, (n,))
    box = torch.randint(1, 7, (n, 2))
    img = 0.1 * torch.randn(n, 1, 8, 8)
    for k in range(n):
        r, c = box[k].tolist()
        img[k, 0, r, c] += 2
        if cls[k]:
            img[k, 0, r - 1 : r + 2, c] += 1
    return img, cls, box / 8.0


model, criterion = Detector(), DetectionLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
data = [sample(32) for _ in range(8)]
for epoch in range(3):
    logs = {"cls": 0.0, "box": 0.0}
    for img, cls, box in data:
        scores, boxes = model(img)
        loss, parts = criterion(scores, boxes, cls, box)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for k in logs:
            logs[k] += parts[k] / len(data)
    print(f"epoch {epoch}", {k: round(v, 4) for k, v in logs.items()})
