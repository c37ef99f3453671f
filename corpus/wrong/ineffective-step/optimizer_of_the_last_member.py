# Optimizers in a dict, but the update uses the name that the loop over members left behind.
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(64, 5)
y = x.sum(1, keepdim=True).sin()
nets = {name: nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1)) for name in ("low", "mid", "high")}
optims = {
    name: torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9) for name, net in nets.items()
}  # expect: ineffective-step
for name, net in nets.items():
    print(name, sum(p.numel() for p in net.parameters()))

for _ in range(10):
    order = torch.randperm(len(x))
    losses = {}
    for key, net in nets.items():
        losses[key] = (net(x[order[:32]]) - y[order[:32]]).square().mean()
        optims[name].zero_grad()
        losses[key].backward()
        optims[name].step()
print({key: round(loss.item(), 4) for key, loss in losses.items()})
