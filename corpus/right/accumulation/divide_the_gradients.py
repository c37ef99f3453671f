"""Looks unscaled, as the losses are plain sums: the gradients themselves are divided by the count of the
window just before the clip, also for what is left at the end."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(7)


def make_pixels(n):
    img = torch.rand(n, 1, 16, 16)
    mask = (F.avg_pool2d(img, 5, stride=1, padding=2) > 0.5).float()
    known = torch.rand(n, 1, 16, 16) > torch.rand(n, 1, 1, 1) * 0.6
    return img, mask, known


def apply_gradients(model, optimizer, pixels):
    for p in model.parameters():
        if p.grad is not None:
            p.grad.div_(pixels)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return norm.item()


def train(model, optimizer, data, micro=6, every=3):
    img, mask, known = data
    pixels, pending, norms = 0, 0, []
    for start in range(0, len(img), micro):
        sl = slice(start, start + micro)
        logits = model(img[sl])
        loss = F.binary_cross_entropy_with_logits(logits, mask[sl], weight=known[sl].float(), reduction="sum")
        loss.backward()
        pixels += known[sl].sum().item()
        pending += 1
        if pending == every:
            norms.append(apply_gradients(model, optimizer, pixels))
            pixels, pending = 0, 0
    if pending:
        norms.append(apply_gradients(model, optimizer, pixels))
    return norms


def main():
    segmenter = nn.Sequential(
        nn.Conv2d(1, 12, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(12, 12, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(12, 1, 1),
    )
    optimizer = torch.optim.RMSprop(segmenter.parameters(), lr=1e-3)
    data = make_pixels(44)
    for epoch in range(2):
        norms = train(segmenter, optimizer, data)
        print(epoch, "grad norms", [round(n, 3) for n in norms])


main()
