"""Two views of one network agree. The view with noise moves further than the clean one, which is detached in a part."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(5)
network = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
sgd = torch.optim.SGD(network.parameters(), lr=0.05)
x, y = torch.randn(180, 8), torch.randint(0, 3, (180,))
for inputs, labels in zip(x.split(18), y.split(18), strict=True):
    clean = network(inputs)
    noisy = network(inputs + 0.2 * torch.randn_like(inputs))
    agreement = 0.3 * F.mse_loss(noisy, clean) + 0.7 * F.mse_loss(noisy, clean.detach())
    loss = F.cross_entropy(clean, labels) + agreement
    sgd.zero_grad()
    loss.backward()
    sgd.step()
print(f"loss {loss.item():.4f}")
