"""Two networks are trained jointly (JoCoR): both divergences between them are part of one loss, with a gradient on both
sides on purpose. Each network has its own optimizer, and large losses are left out as noisy labels."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(9)
first, second = (nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 3)) for width in (16, 24))
optimizers = [torch.optim.Adam(net.parameters(), lr=2e-3) for net in (first, second)]


def divergence(p, q):
    return F.kl_div(F.log_softmax(p, 1), F.softmax(q, 1), reduction="none").sum(1)


for step in range(12):
    x = torch.randn(32, 8)
    y = torch.where(torch.rand(32) < 0.2, torch.randint(3, (32,)), x[:, :3].argmax(1))
    a, b = first(x), second(x)
    fits = F.cross_entropy(a, y, reduction="none") + F.cross_entropy(b, y, reduction="none")
    each = 0.5 * fits + 0.5 * (divergence(a, b) + divergence(b, a))
    loss = each.topk(26, largest=False).values.mean()
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    print(f"step {step} {loss.item():.4f}")
