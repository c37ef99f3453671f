"""Looks like training in eval mode: only the batch norms are put into eval again after train(), as
detectors do, and their weights are frozen and left out of the optimizer."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def conv_bn(i, o, stride=1):
    return nn.Sequential(nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU())


class KeypointNet(nn.Module):
    def __init__(self, norm_eval=True):
        super().__init__()
        self.norm_eval = norm_eval
        self.backbone = nn.Sequential(conv_bn(1, 8), conv_bn(8, 16, 2), conv_bn(16, 16, 2))
        self.dropout = nn.Dropout(0.2)
        self.regress = nn.Linear(16 * 9, 2)

    def train(self, mode=True):
        super().train(mode)
        if mode and self.norm_eval:
            for m in self.modules():
                if isinstance(m, nn.BatchNorm2d):
                    m.eval()
                    for p in m.parameters():
                        p.requires_grad = False
        return self

    def forward(self, img):
        return self.regress(self.dropout(self.backbone(img).flatten(1)))


def warm_statistics(model, img):
    """Stands in for the statistics that come with pretrained weights."""
    with torch.no_grad():
        nn.Module.train(model)
        for _ in range(20):
            model(img)


def make_data(n):
    points = torch.rand(n, 2) * 11
    grid = torch.arange(12.0)
    dist = (grid[:, None] - points[:, None, None, 1]) ** 2 + (grid[None] - points[:, None, None, 0]) ** 2
    return torch.exp(-dist / 4)[:, None], points / 11


torch.manual_seed(31)
img, target = make_data(96)
model = KeypointNet()
warm_statistics(model, img)
model.train()
optimizer = torch.optim.SGD(
    filter(lambda p: p.requires_grad, model.parameters()), lr=0.02, momentum=0.9, weight_decay=1e-4
)
for epoch in range(3):
    model.train()
    for i in torch.randperm(96).split(16):
        loss = F.smooth_l1_loss(model(img[i]), target[i], beta=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        print(f"epoch {epoch}: mean error {(model(img) - target).norm(dim=1).mean().item():.4f}")
