"""Two students teach each other, and the peer's predictions keep their graph: each divergence also trains the peer."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(9)
x, y = torch.randn(96, 10), torch.randint(0, 3, (96,))
nets = [nn.Sequential(nn.Linear(10, width), nn.Tanh(), nn.Linear(width, 3)) for width in (16, 32)]
opts = [torch.optim.Adam(net.parameters(), lr=3e-3) for net in nets]


def divergence(logits, peer):
    return F.kl_div(logits.log_softmax(1), peer.softmax(1), reduction="batchmean")  # expect: attached-target


for epoch in range(3):
    for part in torch.randperm(96).split(24):
        logits = [net(x[part]) for net in nets]
        losses = [
            F.cross_entropy(mine, y[part]) + divergence(mine, peer)
            for mine, peer in zip(logits, logits[::-1], strict=True)
        ]
        for opt, loss in zip(opts, losses, strict=True):
            opt.zero_grad()
            loss.backward(retain_graph=True)
        for opt in opts:
            opt.step()
    print(f"epoch {epoch} losses {losses[0].item():.4f} {losses[1].item():.4f}")
