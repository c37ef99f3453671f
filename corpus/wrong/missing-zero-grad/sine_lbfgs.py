"""The closure never clears: LBFGS calls it several times, and each gradient holds all earlier ones."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.linspace(-1, 1, 40).unsqueeze(1)
y = torch.sin(4 * x)
net = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))
opt = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=5, line_search_fn="strong_wolfe")


def closure():
    loss = (net(x) - y).pow(2).mean()
    loss.backward()  # expect: missing-zero-grad
    return loss


for it in range(4):
    loss = opt.step(closure)
    print(it, float(loss))
