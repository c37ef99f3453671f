"""Segmentation and depth from one trunk: the loss of the depth is computed and logged in every step, but only the first
of the two is back-propagated. A test of the model follows in the same function."""

import torch
import torch.nn.functional as F
from torch import nn


class Scene(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.ReLU())
        self.seg_head = nn.Conv2d(width, 4, 1)
        self.depth_head = nn.Conv2d(width, 1, 1)

    def forward(self, image):
        h = self.trunk(image)
        return self.seg_head(h), self.depth_head(h).squeeze(1)


def main(epochs=3):
    torch.manual_seed(0)
    images = torch.rand(48, 3, 6, 6)
    classes, depth = (4 * images[:, 0]).long(), images.sum(1)
    model = Scene()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for epoch in range(epochs):
        log = torch.zeros(2)
        for i in torch.arange(32).split(8):
            seg, far = model(images[i])
            parts = [F.cross_entropy(seg, classes[i]), F.l1_loss(far, depth[i])]
            log += torch.tensor([part.item() for part in parts])
            loss = 1.0 * parts[0]  # expect: unreached-parameter
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(epoch, [round(each, 3) for each in (log / 4).tolist()])
    model.eval()
    with torch.no_grad():
        seg, far = model(images[32:])
        right = (seg.argmax(1) == classes[32:]).float().mean().item()
        error = (far - depth[32:]).abs().mean().item()
    print(f"accuracy {right:.3f} depth error {error:.3f}")


main()
