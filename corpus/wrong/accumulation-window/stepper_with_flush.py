"""A stepper steps after six micro-batches, and has a method to step for the rest. The loop never calls it: the next
epoch, of 20 micro-batches, begins with a cleared gradient."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(160, 5)
y = x[:, :1] - x[:, 1:2] ** 2
model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))


class Stepper:
    def __init__(self, params, size):
        self.opt = torch.optim.SGD(params, lr=0.1)
        self.size, self.dirty, self.seen = size, False, 0

    def add(self, loss):
        loss.div(self.size).backward()
        self.seen, self.dirty = self.seen + 1, True
        if self.seen % self.size == 0:
            self.finish()

    def finish(self):
        if self.dirty:
            self.opt.step()
            self.opt.zero_grad()
        self.dirty = False


stepper = Stepper(model.parameters(), size=6)
for epoch in range(4):
    stepper.opt.zero_grad()  # expect: accumulation-window
    stepper.seen = 0
    for i in torch.randperm(160).split(8):
        stepper.add(nn.functional.mse_loss(model(x[i]), y[i]))
    with torch.no_grad():
        print(epoch, round(nn.functional.mse_loss(model(x), y).item(), 4))
