"""The gradients of the backbone are averaged over ranks, those of the head are forgotten: the heads drift apart."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(96, 8), torch.randint(3, (96,)))
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
    backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
    head = nn.Linear(16, 3)
    optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.1)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(head(backbone(x)), y).backward()  # expect: ddp-sync
            for p in backbone.parameters():
                dist.all_reduce(p.grad)  # expect: ddp-sync
                p.grad /= world
            optimizer.step()  # expect: ddp-sync
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
