"""Looks like per-task gradients that were not cleared in between: the copies of the running sum only show how its
direction settles, and what is written to `.grad` is the sum, divided."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
opt = torch.optim.Adam(net.parameters(), lr=5e-3)
ACCUMULATE = 4
for update in range(8):
    opt.zero_grad()
    snapshots = []
    for _ in range(ACCUMULATE):
        x = torch.randn(16, 6)
        loss = (net(x) - x.prod(1, keepdim=True)).square().mean()
        loss.backward()
        snapshots.append(torch.cat([p.grad.flatten().clone() for p in net.parameters()]))
    settled = [nn.functional.cosine_similarity(s, snapshots[-1], dim=0).item() for s in snapshots]
    for p in net.parameters():
        p.grad = p.grad / ACCUMULATE
    opt.step()
    print(f"update {update} " + " ".join(f"{each:.2f}" for each in settled))
