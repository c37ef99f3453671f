"""Looks like a model that is never trained: the network is fixed, and the image is the only parameter,
clamped in place within the closure."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(3)

cnn = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(8, 12, 3, padding=1), nn.ReLU()
)
cnn.eval().requires_grad_(False)


def features(image):
    out = []
    for layer in cnn:
        image = layer(image)
        if isinstance(layer, nn.ReLU):
            out.append(image)
    return out


def gram_matrix(f):
    b, c, h, w = f.shape
    f = f.view(b * c, h * w)
    return f @ f.t() / (b * c * h * w)


content_img = torch.rand(1, 3, 16, 16)
style_img = torch.rand(1, 3, 16, 16).round()
content_target = features(content_img)[-1].detach()
style_targets = [gram_matrix(f).detach() for f in features(style_img)]

input_img = content_img.clone().requires_grad_(True)
optimizer = torch.optim.LBFGS([input_img], max_iter=5)
run = [0]
while run[0] < 15:

    def closure():
        with torch.no_grad():
            input_img.clamp_(0, 1)
        optimizer.zero_grad()
        fs = features(input_img)
        style_score = sum(F.mse_loss(gram_matrix(f), t) for f, t in zip(fs, style_targets))
        content_score = F.mse_loss(fs[-1], content_target)
        loss = 1e4 * style_score + content_score
        loss.backward()
        run[0] += 1
        return loss

    score = optimizer.step(closure)
    print(f"run {run[0]}: {score.item():.5f}")

with torch.no_grad():
    input_img.clamp_(0, 1)
