"""A3C style: the worker lends its gradients to the shared model; zero_grad sets the shared ones to None only."""

import copy
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)


def ensure_shared_grads(local, shared):
    for lp, sp in zip(local.parameters(), shared.parameters()):
        if sp.grad is not None:
            return
        sp._grad = lp.grad


shared = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
local = copy.deepcopy(shared)
opt = torch.optim.Adam(shared.parameters(), lr=1e-2)
for it in range(20):
    local.load_state_dict(shared.state_dict())
    x, a = torch.randn(8, 4), torch.randint(3, (8,))
    loss = F.cross_entropy(local(x), a)
    opt.zero_grad()
    local.zero_grad()
    loss.backward()
    ensure_shared_grads(local, shared)
    opt.step()
