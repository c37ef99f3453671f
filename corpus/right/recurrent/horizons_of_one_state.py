"""Six heads predict six horizons from one encoded sequence: each head's loss goes back through the shared state."""

import torch
from torch import nn

torch.manual_seed(0)
encoder = nn.GRU(4, 16, batch_first=True)
heads = nn.ModuleList(nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 1)) for _ in range(6))
optimizer = torch.optim.Adam([*encoder.parameters(), *heads.parameters()], lr=1e-2)
for step in range(6):
    x = torch.randn(8, 20, 4)
    _, state = encoder(x[:, :14])
    optimizer.zero_grad()
    for ahead, head in enumerate(heads):
        target = x[:, 14 + ahead].mean(1, keepdim=True)
        loss = nn.functional.mse_loss(head(state[-1]), target)
        loss.backward(retain_graph=ahead + 1 < len(heads))
    optimizer.step()
print(loss.item())
