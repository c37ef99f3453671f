"""Rank 0 evaluates through ``model.module`` and saves, while the other waits: nothing there needs DDP."""

import io

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


@torch.no_grad()
def evaluate(model, x, y):
    model.eval()
    accuracy = (model(x).argmax(dim=1) == y).float().mean()
    model.train()
    return accuracy.item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    x, y = torch.randn(160, 8), torch.randint(3, (160,))
    data = TensorDataset(x[:128], y[:128])
    loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data))
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    best = 0.0
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        if rank == 0:
            best = max(best, evaluate(model.module, x[128:], y[128:]))
            torch.save(model.module.state_dict(), io.BytesIO())
            print(epoch, best)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
