"""Only rank 0 steps, as only rank 0 saves and prints: the other ranks keep their first weights for ever."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def is_main():
    return dist.get_rank() == 0


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shard = torch.Generator().manual_seed(dist.get_rank())
    for step in range(8):
        x, y = torch.randn(16, 8, generator=shard), torch.randint(3, (16,), generator=shard)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()  # expect: ddp-sync
        if is_main():
            optimizer.step()  # expect: ddp-sync
            if step % 4 == 0:
                print(step, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
