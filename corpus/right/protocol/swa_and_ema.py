"""Two more copies of the model are kept that no optimizer knows: averaged weights, updated by hand, whose BatchNorm
statistics are recomputed at the end."""

import torch
import torch.nn as nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(240, 10)
y = (x[:, :3].sum(1) * x[:, 3] > 0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=24, shuffle=True)
model = nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
swa_model = AveragedModel(model)
ema_model = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
swa_scheduler = SWALR(optimizer, swa_lr=0.05, anneal_epochs=1)
swa_start = 3

for epoch in range(6):
    for xb, yb in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(xb), yb)
        loss.backward()
        optimizer.step()
        ema_model.update_parameters(model)
    if epoch >= swa_start:
        swa_model.update_parameters(model)
        swa_scheduler.step()
    else:
        scheduler.step()

for name, m in (("model", model), ("swa", swa_model), ("ema", ema_model)):
    if m is not model:
        update_bn(loader, m)
    m.eval()
    with torch.no_grad():
        print(f"{name}: {nn.functional.cross_entropy(m(x), y).item():.4f}")
