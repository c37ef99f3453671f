"""The target encoder, inside the module that is trained, runs with gradients that add up and that nothing uses."""

import copy

import torch
from torch import nn
import torch.nn.functional as F


class Learner(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.online = net
        self.predictor = nn.Linear(8, 8)
        self.target = copy.deepcopy(net)

    def forward(self, x):
        p = self.predictor(self.online(x + 0.1 * torch.randn_like(x)))
        t = self.target(x + 0.1 * torch.randn_like(x))
        return (2 - 2 * F.cosine_similarity(p, t)).mean()

    @torch.no_grad()
    def update_target(self):
        for a, b in zip(self.target.parameters(), self.online.parameters()):
            a.lerp_(b, 0.01)


torch.manual_seed(0)
learner = Learner(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8)))
trained = [*learner.online.parameters(), *learner.predictor.parameters()]
opt = torch.optim.Adam(trained, lr=1e-3)
for step in range(20):
    loss = learner(torch.randn(16, 4))  # expect: wasted-gradient
    opt.zero_grad()
    loss.backward()
    opt.step()
    learner.update_target()
print(loss.item())
