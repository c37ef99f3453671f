"""The slope is compared with r u (1 - u), but mse_loss gets it without a graph."""

import torch
import torch.nn.functional as F

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
rate = torch.nn.Parameter(torch.tensor(0.5))
optimizer = torch.optim.Adam([*model.parameters(), rate], lr=1e-2)
seen = torch.linspace(0, 3, 8).unsqueeze(1)
population = 1 / (1 + 9 * torch.exp(-seen))
for epoch in range(10):
    t = (3 * torch.rand(32, 1)).requires_grad_()
    u = model(t)
    (slope,) = torch.autograd.grad(u, t, torch.ones_like(u), retain_graph=True)  # expect: broken-graph
    physics = F.mse_loss(slope, rate * u * (1 - u))
    data = F.mse_loss(model(seen), population)
    optimizer.zero_grad()
    (data + 0.1 * physics).backward()
    optimizer.step()
print(rate.item())
