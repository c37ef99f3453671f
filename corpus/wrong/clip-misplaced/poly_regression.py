"""`model.parameters()` was used up by the optimizer, and the clipping iterates over nothing: the gradients
have 8 to 31 times the norm that was asked for.
"""

import torch
import torch.nn as nn
from torch import optim

torch.manual_seed(19)

# heavy-tailed targets: a few points are far off
x = torch.rand(200, 1) * 4 - 2
noise = torch.distributions.StudentT(2.0).sample((200, 1))
y = 10 * x**3 - 4 * x + 3 * noise
feats = torch.cat([x, x**2, x**3], dim=1)

model = nn.Sequential(nn.Linear(3, 24), nn.Tanh(), nn.Linear(24, 1))
params = model.parameters()  # expect: clip-misplaced
optimizer = optim.SGD(params, lr=2e-3)
criterion = nn.MSELoss()
max_norm = 5.0

for epoch in range(3):
    perm = torch.randperm(len(x))
    total = 0.0
    for idx in perm.split(25):
        optimizer.zero_grad()
        loss = criterion(model(feats[idx]), y[idx])
        loss.backward()
        nn.utils.clip_grad_norm_(params, max_norm)  # expect: clip-misplaced
        optimizer.step()
        total += loss.item() * len(idx)
    print(f"epoch {epoch}: mse {total / len(x):.2f}")
