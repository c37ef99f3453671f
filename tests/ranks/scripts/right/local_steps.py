"""Local SGD: ranks step alone on their own data, and every fourth step their weights are averaged."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EVERY = 4


@torch.no_grad()
def average_weights(model):
    for p in model.parameters():
        dist.all_reduce(p.data)
        p.data /= dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(256, 8), torch.randint(3, (256,)))
    loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data))
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = 0
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            steps += 1
            if steps % EVERY == 0:
                average_weights(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
