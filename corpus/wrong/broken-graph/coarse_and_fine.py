"""The coarse network's loss is added as a number, so only the fine network learns. The sample positions are
detached on purpose."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Field(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, z):
        return self.layers(z.unsqueeze(-1))


def composite(raw, z):
    weights = torch.softmax(raw[..., 1], dim=-1)
    return (weights * raw[..., 0]).sum(-1), weights


def render(coarse, fine, rays):
    z = torch.linspace(0, 1, 16).expand(len(rays), 16) + 0.1 * rays
    rgb0, weights = composite(coarse(z), z)
    samples = z + 0.05 * (weights.cumsum(-1) - 0.5)
    samples = samples.detach()
    z, _ = torch.sort(torch.cat([z, samples], -1), -1)
    rgb, _ = composite(fine(z), z)
    return rgb, rgb0


coarse, fine = Field(), Field()
optimizer = torch.optim.Adam([*coarse.parameters(), *fine.parameters()], lr=5e-3)
for it in range(16):
    rays = torch.rand(32, 1)
    target = torch.sin(3 * rays[:, 0])
    rgb, rgb0 = render(coarse, fine, rays)
    optimizer.zero_grad()
    img_loss = F.mse_loss(rgb, target)
    img_loss0 = F.mse_loss(rgb0, target)
    loss = img_loss + img_loss0.item()  # expect: broken-graph
    loss.backward()
    optimizer.step()
    if it % 8 == 0:
        print(f"iter {it} loss {loss.item():.4f}")
