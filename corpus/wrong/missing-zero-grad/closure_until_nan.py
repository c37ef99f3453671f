"""The closure of LBFGS never clears the gradients: the sums blow up inside a step, and the image becomes NaN."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(123)


def texture(features):
    flat = features.flatten(1)
    return flat @ flat.T / flat.shape[1]


ys, xs = torch.meshgrid(torch.linspace(0, 1, 16), torch.linspace(0, 1, 16), indexing="ij")
layers = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)
).requires_grad_(False)
wanted = texture(layers(torch.sin(40 * xs)[None]))
image = ((xs - 0.5) ** 2 + (ys - 0.5) ** 2 < 0.1).float()[None].requires_grad_(True)
optimizer = torch.optim.LBFGS([image])
for step in range(4):

    def closure():
        with torch.no_grad():
            image.clamp_(0, 1)
        loss = 1e5 * F.mse_loss(texture(layers(image)), wanted)
        loss.backward()  # expect: missing-zero-grad
        return loss

    optimizer.step(closure)
    print(step, image.detach().mean().item())
