"""Running statistics are computed anew before each validation, over the whole training set ("precise" batch norm).
The validation itself runs in evaluation mode."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 3))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
rule = torch.randn(6, 3)
x = torch.randn(256, 6)
y = (x @ rule).argmax(1)


def recompute(model, batches):
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm1d)]
    kept = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
    spread = 0.0
    with torch.no_grad():
        for batch in batches:
            spread += model(batch).std().item()
    for norm, momentum in zip(norms, kept):
        norm.momentum = momentum
    return spread / len(batches)


for epoch in range(3):
    net.train()
    for index in torch.randperm(192).split(32):
        optimizer.zero_grad()
        F.cross_entropy(net(x[index]), y[index]).backward()
        optimizer.step()
    spread = recompute(net, x[:192].split(32))
    net.eval()
    with torch.no_grad():
        score = sum(
            (net(part).argmax(1) == label).sum().item()
            for part, label in zip(x[192:].split(32), y[192:].split(32))
        )
    print(f"{epoch}: {score / 64:.3f}, logits spread {spread:.2f}")
