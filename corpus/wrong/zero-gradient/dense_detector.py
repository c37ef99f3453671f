"""The focal-loss prior bias of -4.6 meant for the last layer is written into every Linear layer, so all ReLUs are dead and only the last bias learns."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(9)
torch.set_num_threads(1)

PRIOR = 0.01


def init_weights(module):
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.05)
        nn.init.constant_(module.bias, -math.log((1 - PRIOR) / PRIOR))  # expect: zero-gradient


class AnchorScorer(nn.Module):
    """Scores each anchor for each class from its pooled features."""

    def __init__(self, n_feat=12, width=32, n_class=3):
        super().__init__()
        self.shared = nn.Sequential(
            nn.Linear(n_feat, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
        )
        self.score = nn.Linear(width, n_class)
        self.apply(init_weights)

    def forward(self, feats):
        return self.score(self.shared(feats))


def focal_loss(logits, target, alpha=0.25, gamma=2.0):
    ce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    p = torch.sigmoid(logits)
    pt = torch.where(target > 0, p, 1 - p)
    weight = torch.where(target > 0, alpha, 1 - alpha) * (1 - pt) ** gamma
    return (weight * ce).sum() / target.sum().clamp(min=1)


def make_anchors(n):
    feats = torch.randn(n, 12)
    logits = feats[:, :3] * 2 + feats[:, 3:6] - 3.5
    return feats, (logits > 0).float()


def recall(model, feats, target):
    model.eval()
    with torch.no_grad():
        pred = model(feats) > 0
    model.train()
    return (pred & (target > 0)).sum().item() / target.sum().item()


feats, target = make_anchors(600)
val_feats, val_target = make_anchors(200)
model = AnchorScorer()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)

for epoch in range(3):
    epoch_loss = 0.0
    for idx in torch.randperm(len(feats)).split(100):
        loss = focal_loss(model(feats[idx]), target[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item()
    scheduler.step()
    print(f"epoch {epoch}: loss {epoch_loss / 6:.4f} recall {recall(model, val_feats, val_target):.3f}")
