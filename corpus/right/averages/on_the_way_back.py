"""Fine-tuning that stays connected to the pretrained weights: the loss is also computed at points on the way back to
them, and a penalty keeps a running average of the weights near. Both use averages with a gradient on purpose, and
nothing is compared with the output of an average."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call


def blend(old, new, share):
    return {name: (1 - share) * old[name] + share * new[name] for name in old}


torch.manual_seed(8)
x = torch.randn(96, 10)
y = (x[:, 0] * x[:, 1] > 0).long()
model = nn.Sequential(nn.Linear(10, 24), nn.Tanh(), nn.Linear(24, 2))
pretrained = {name: weight.detach().clone() for name, weight in model.named_parameters()}
average = pretrained
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for _epoch in range(4):
    for part in torch.randperm(96).split(32):
        now = dict(model.named_parameters())
        loss = F.cross_entropy(model(x[part]), y[part])
        for share in (0.25, 0.75):
            loss = loss + 0.3 * F.cross_entropy(
                functional_call(model, blend(pretrained, now, share), (x[part],)), y[part]
            )
        moving = blend(average, now, 0.1)
        loss = loss + 0.1 * sum((now[name] - moving[name]).pow(2).sum() for name in now)
        opt.zero_grad()
        loss.backward()
        opt.step()
        average = {name: weight.detach() for name, weight in moving.items()}
print(f"loss {loss.item():.4f}")
