"""FSDP2: every layer in parts on all ranks, gradients averaged at the last micro-batch."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    shard = torch.Generator().manual_seed(dist.get_rank())
    accumulate = 3
    for _ in range(4):
        for i in range(accumulate):
            model.set_requires_gradient_sync(i == accumulate - 1)
            x, y = torch.randn(8, 8, generator=shard), torch.randint(4, (8,), generator=shard)
            (F.cross_entropy(model(x), y) / accumulate).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
