"""DDP has averaged the gradients when backward returns; they are divided by the number of ranks once more."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Regression:
    def __init__(self):
        torch.manual_seed(0)
        self.net = DistributedDataParallel(nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 1)))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.world_size = dist.get_world_size()

    def step(self, x, y):
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.net(x), y)
        loss.backward()
        for p in self.net.parameters():
            p.grad.div_(self.world_size)  # expect: ddp-sync
        self.optimizer.step()
        return loss.item()


def main():
    dist.init_process_group("gloo")
    task = Regression()
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(8):
        x = torch.randn(16, 4, generator=generator)
        task.step(x, x.prod(dim=1, keepdim=True))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
