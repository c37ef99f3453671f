"""The closure never clears: within one step, each evaluation adds its gradient to those before it."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.linspace(-1, 1, 64).unsqueeze(1)
y = torch.sin(3 * x)
model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
adam = torch.optim.Adam(model.parameters(), lr=1e-2)
for it in range(20):
    loss = nn.functional.mse_loss(model(x), y)
    adam.zero_grad()
    loss.backward()
    adam.step()
print("adam", loss.item())

lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=10, line_search_fn="strong_wolfe")


def closure():
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()  # expect: missing-zero-grad
    return loss


lbfgs.step(closure)
print("lbfgs", closure().item())
