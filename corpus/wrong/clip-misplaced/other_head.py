"""Two tasks take turns on one encoder. The second task's update is a copy of the first, and still clips its head."""

import torch
from torch import nn

torch.manual_seed(12)
encoder = nn.Sequential(nn.Linear(6, 20), nn.ReLU())
depth, normal = nn.Linear(20, 1), nn.Linear(20, 3)
depth_params = [*encoder.parameters(), *depth.parameters()]
normal_params = [*encoder.parameters(), *normal.parameters()]
depth_opt = torch.optim.RMSprop(depth_params, lr=1e-3)
normal_opt = torch.optim.RMSprop(normal_params, lr=1e-3)
pixels = torch.randn(128, 6)
distance = 3 * pixels.square().sum(1, keepdim=True)
direction = 2 * pixels[:, :3] + pixels[:, 3:]

for it in range(16):
    rows = torch.randint(0, 128, (16,))
    features = encoder(pixels[rows])
    if it % 2 == 0:
        depth_opt.zero_grad()
        (depth(features) - distance[rows]).square().mean().backward()
        nn.utils.clip_grad_norm_(depth_params, 0.5)
        depth_opt.step()
    else:
        normal_opt.zero_grad()
        (normal(features) - direction[rows]).square().mean().backward()
        nn.utils.clip_grad_norm_(depth_params, 0.5)  # expect: clip-misplaced
        normal_opt.step()
