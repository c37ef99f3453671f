"""The frozen backbone is not wrapped, as it has nothing to average; the head is."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(96, 8), torch.randint(3, (96,)))
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
    backbone = nn.Sequential(nn.Linear(8, 32), nn.ReLU()).eval().requires_grad_(False)
    head = DistributedDataParallel(nn.Linear(32, 3))
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            with torch.no_grad():
                features = backbone(x)
            loss = F.cross_entropy(head(features), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
