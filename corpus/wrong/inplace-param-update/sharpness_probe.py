"""The weights are perturbed to measure the sharpness of the loss and not put back, so noise piles up in the model."""

import torch
import torch.nn as nn

torch.manual_seed(27)
config = {"lr": 3e-3, "epochs": 3, "batch": 32, "probe_every": 2, "radius": 0.03}

u = torch.rand(320, 2) * 6.28
points = torch.stack([u[:, 0].sin(), u[:, 0].cos(), u[:, 1].sin(), u[:, 1].cos()], 1)
height = (points[:, 0] * points[:, 3] + 0.5 * points[:, 1]).unsqueeze(1)


class Surface(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(4, 40)
        self.readout = nn.Linear(40, 1)

    def forward(self, x):
        return self.readout(torch.nn.functional.softplus(self.hidden(x)))


@torch.no_grad()
def sharpness(model, x, y, radius):
    base = nn.functional.mse_loss(model(x), y)
    for p in model.parameters():
        p.add_(radius * torch.randn_like(p))  # expect: inplace-param-update
    return (nn.functional.mse_loss(model(x), y) - base).item()


model = Surface()
optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
for epoch in range(config["epochs"]):
    sharp = []
    for k, idx in enumerate(torch.randperm(320).split(config["batch"])):
        loss = nn.functional.mse_loss(model(points[idx]), height[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if k % config["probe_every"] == 0:
            sharp.append(sharpness(model, points[idx], height[idx], config["radius"]))
    print(f"epoch {epoch} mse {loss.item():.4f} sharpness {sum(sharp) / len(sharp):.4f}")
