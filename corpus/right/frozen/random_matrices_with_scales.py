"""Looks like an adapter that is frozen by mistake with the pretrained network: its two matrices are random on purpose,
and only the vectors that scale them are trained (VeRA)."""

import torch
from torch import nn


class Scaled(nn.Module):
    def __init__(self, base, rank=8):
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        self.scale_d = nn.Parameter(torch.full((rank,), 0.1))
        self.scale_b = nn.Parameter(torch.zeros(base.out_features))

    def forward(self, x):
        return self.base(x) + self.scale_b * self.up(self.scale_d * self.down(x))


torch.manual_seed(0)
make = lambda: nn.Sequential(nn.Linear(9, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 3))  # noqa: E731
checkpoint = make().state_dict()
model = make()
model.load_state_dict(checkpoint)
for place in (0, 2, 4):
    model[place] = Scaled(model[place])
for name, p in model.named_parameters():
    p.requires_grad_("scale" in name)
    if "scale" not in name:
        p.requires_grad = False

opt = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
for step in range(15):
    x = torch.randn(48, 9)
    loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"step {step} loss {loss.item():.4f}")
