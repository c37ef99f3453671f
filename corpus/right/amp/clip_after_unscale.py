"""Looks like a step that goes around the scaler's gradients: they are unscaled before the clip, and the
scaler skips what is not finite by itself."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
device_type = "cpu"
use_amp = True

x, y = load_digits(return_X_y=True)
x = torch.tensor(x[:320], dtype=torch.float32).view(-1, 1, 8, 8) / 16
y = torch.tensor(y[:320])

net = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(16, 16, 3, stride=2),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(144, 10),
)
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
scaler = torch.amp.GradScaler(device_type, init_scale=2.0**10, enabled=use_amp)

for epoch in range(2):
    for idx in torch.randperm(320).split(64):
        with torch.autocast(device_type=device_type, dtype=torch.bfloat16, enabled=use_amp):
            output = net(x[idx])
            loss = F.cross_entropy(output, y[idx])
        scaler.scale(loss).backward()

        # Unscales the gradients of optimizer's assigned parameters in-place
        scaler.unscale_(opt)
        # Since the gradients are unscaled, clips as usual.
        torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm=1.0)

        scaler.step(opt)
        scaler.update()
        opt.zero_grad()  # set_to_none=True here can modestly improve performance
    print(f"epoch {epoch} loss {loss.item():.4f} scale {scaler.get_scale():.0f}")
