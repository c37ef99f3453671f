"""FixMatch: pseudo labels from the model's own confident predictions on a weak view."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for i in range(15):
    x, y, u = torch.randn(16, 6), torch.randint(3, (16,)), torch.randn(32, 6)
    with torch.no_grad():
        p, label = net(u).softmax(1).max(1)
    strong = net(u + 0.3 * torch.randn_like(u))
    mask = (p > 0.4).float()
    loss = (
        nn.functional.cross_entropy(net(x), y)
        + (nn.functional.cross_entropy(strong, label, reduction="none") * mask).mean()
    )
    opt.zero_grad()
    loss.backward()
    opt.step()
