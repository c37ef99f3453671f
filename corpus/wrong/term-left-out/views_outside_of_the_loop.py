# backward() comes after the loop over the parts of a batch, and only the last part's loss is left.
import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
inputs = torch.randn(240, 6)
labels = (inputs @ torch.randn(6, 3)).argmax(1)
for rows in torch.randperm(240).split(24):
    for x, y in zip(inputs[rows].chunk(3), labels[rows].chunk(3), strict=True):
        loss = functional.cross_entropy(model(x), y)  # expect: term-left-out
    opt.zero_grad()
    loss.backward()
    opt.step()
