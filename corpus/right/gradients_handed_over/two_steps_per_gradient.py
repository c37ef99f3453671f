"""Two short steps follow each gradient on purpose; a monitor's own training runs between the rounds."""

import torch
from torch import nn

torch.manual_seed(6)
net, monitor = nn.Linear(6, 3), nn.Linear(6, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.02)
watch = torch.optim.SGD(monitor.parameters(), lr=0.05)
for step in range(14):
    x = torch.randn(24, 6)
    loss = nn.functional.cross_entropy(net(x), x[:, :3].argmax(1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    opt.step()
    error = (monitor(x).squeeze(1) - x.norm(dim=1)).square().mean()
    watch.zero_grad()
    error.backward()
    watch.step()
print(f"{loss.item():.4f} {error.item():.4f}")
