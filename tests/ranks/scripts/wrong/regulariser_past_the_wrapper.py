"""A trainer class: a consistency step through model.module every third step."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __init__(self, net):
        self.net = DDP(net)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=1e-2)

    def train_step(self, x, y):
        self.opt.zero_grad()
        nn.functional.mse_loss(self.net(x), y).backward()
        self.opt.step()

    def extra_step(self, x):
        self.opt.zero_grad()
        self.net.module(x).pow(2).mean().backward()  # expect: ddp-sync
        self.opt.step()


dist.init_process_group("gloo")
torch.manual_seed(0)
trainer = Trainer(nn.Linear(3, 1))
g = torch.Generator().manual_seed(10 + dist.get_rank())
for step in range(15):
    x, y = torch.randn(6, 3, generator=g), torch.randn(6, 1, generator=g)
    trainer.train_step(x, y)
    if step % 3 == 0:
        trainer.extra_step(x)
dist.destroy_process_group()
