"""The inverse square root moved into the training step, but the epoch's call from before stayed behind."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Run:
    def __init__(self, net, lr=0.05):
        self.net = net
        self.optim = torch.optim.SGD(net.parameters(), lr=lr)
        self.decay = torch.optim.lr_scheduler.LambdaLR(self.optim, lambda n: (1 + n) ** -0.5)

    def one_batch(self, signal, target):
        self.optim.zero_grad()
        loss = (self.net(signal) - target).abs().mean()
        loss.backward()
        self.optim.step()
        self.decay.step()
        return loss.item()

    def one_epoch(self, batches):
        losses = [self.one_batch(*batch) for batch in batches]
        return sum(losses) / len(losses)


torch.manual_seed(9)
signal = torch.randn(72, 3)
batches = DataLoader(TensorDataset(signal, signal.prod(1, keepdim=True)), batch_size=12)
run = Run(nn.Sequential(nn.Linear(3, 12), nn.SiLU(), nn.Linear(12, 1)))
for epoch in range(4):
    mean = run.one_epoch(batches)
    run.decay.step()  # expect: scheduler-cadence
    print(epoch, round(mean, 4), run.decay.get_last_lr())
