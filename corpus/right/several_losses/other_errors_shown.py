"""Other errors than the trained one are computed with a graph and printed."""

import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
model = nn.Linear(8, 3)
opt = torch.optim.Adam(model.parameters(), 1e-3)
for i in range(20):
    x, y = torch.randn(12, 8), torch.randn(12, 3)
    out = model(x)
    loss = F.smooth_l1_loss(out, y)
    mae = (out - y).abs().mean()
    rmse = F.mse_loss(out, y).sqrt()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(i, loss.item(), mae.item(), rmse.item(), loss.exp().item())
