"""Looks like a model that no gradient reaches: two averages follow the trained one, and the batch norm
statistics of one are recomputed at the end."""

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
angles = torch.rand(160) * 6.28
radius = torch.cat([torch.ones(80), 2 * torch.ones(80)]) + 0.2 * torch.randn(160)
points = torch.stack([radius * angles.cos(), radius * angles.sin()], 1)
ring = torch.cat([torch.zeros(80), torch.ones(80)]).long()
loader = DataLoader(TensorDataset(points, ring), batch_size=32, shuffle=True)

model = nn.Sequential(nn.Linear(2, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))
swa_model = AveragedModel(model)
ema_model = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
swa_start = 2
swa_scheduler = SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)

for epoch in range(4):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        ema_model.update_parameters(model)
    if epoch >= swa_start:
        swa_model.update_parameters(model)
        swa_scheduler.step()
    else:
        scheduler.step()

update_bn(((x,) for x, _ in loader), swa_model)
swa_model.eval()
ema_model.eval()
with torch.no_grad():
    for name, averaged in (("swa", swa_model), ("ema", ema_model)):
        accuracy = (averaged(points).argmax(1) == ring).float().mean().item()
        print(f"{name} accuracy {accuracy:.3f}")
