"""L-BFGS calls the closure several times per step; zero_grad and backward are inside it, so one step has many backwards."""

import torch
import torch.nn as nn
from sklearn.datasets import load_diabetes

torch.manual_seed(0)
X, y = load_diabetes(return_X_y=True)
X = torch.tensor(X, dtype=torch.float32) * 20
y = torch.tensor((y - y.mean()) / y.std(), dtype=torch.float32).unsqueeze(1)

net = nn.Sequential(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")
calls = 0


def closure():
    global calls
    calls += 1
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(net(X), y) + 1e-3 * sum(p.pow(2).sum() for p in net.parameters())
    loss.backward()
    return loss


for epoch in range(10):
    loss = optimizer.step(closure)
    if epoch % 5 == 4:
        print(f"step {epoch + 1} objective {loss.item():.4f} after {calls} evaluations")
