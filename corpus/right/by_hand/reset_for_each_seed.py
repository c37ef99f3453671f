"""The model is initialized again for each seed; Adam is kept, which is a choice."""

import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
x, y = torch.randn(160, 8), torch.randint(3, (160,))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def reset(model):
    for layer in model:
        if isinstance(layer, nn.Linear):
            layer.reset_parameters()


opt = torch.optim.Adam(model.parameters(), lr=1e-2)
for seed in range(3):
    torch.manual_seed(seed)
    reset(model)
    for i in torch.randperm(160).split(20):
        loss = F.cross_entropy(model(x[i]), y[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(loss.item())
