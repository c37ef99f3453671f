"""The update of the loop before accumulation was kept below the new one, so each micro-batch is stepped on alone."""

import torch
from torch import nn


class Learner:
    def __init__(self, net, every=3):
        self.net, self.every = net, every
        self.opt = torch.optim.Adam(net.parameters(), lr=3e-3)
        self.count = 0

    def learn(self, x, y):
        error = (self.net(x) - y).abs().mean()
        (error / self.every).backward()
        self.count += 1
        return error.item()


torch.manual_seed(13)
learner = Learner(nn.Sequential(nn.Linear(2, 32), nn.SiLU(), nn.Linear(32, 1)))
history = []
for i in range(30):
    x = torch.rand(16, 2) * 4 - 2
    history.append(learner.learn(x, (x[:, :1] * x[:, 1:]).tanh()))
    if learner.count % learner.every == 0:
        nn.utils.clip_grad_norm_(learner.net.parameters(), 5.0)
        learner.opt.step()
    learner.opt.step()  # expect: accumulation-window
    learner.opt.zero_grad()
print(f"mean absolute error {sum(history[:5]) / 5:.3f}, then {sum(history[-5:]) / 5:.3f}")
