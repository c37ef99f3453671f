"""The second optimizer holds the encoder, which its detached loss never reaches."""

import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
enc, head_a, head_b = nn.Linear(6, 12), nn.Linear(12, 2), nn.Linear(12, 3)
opt_a = torch.optim.Adam(list(enc.parameters()) + list(head_a.parameters()), 1e-3)
opt_b = torch.optim.Adam(
    list(enc.parameters()) + list(head_b.parameters()), 1e-3
)  # expect: unreached-parameter
for i in range(20):
    x = torch.randn(8, 6)
    ya, yb = torch.randint(2, (8,)), torch.randint(3, (8,))
    h = torch.relu(enc(x))
    loss_a = F.cross_entropy(head_a(h), ya)
    loss_b = F.cross_entropy(head_b(h.detach()), yb)
    opt_a.zero_grad()
    loss_a.backward()
    opt_a.step()
    opt_b.zero_grad()
    loss_b.backward()
    opt_b.step()
