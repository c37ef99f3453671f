"""All gradients go over the wire in one flat tensor, which is divided there."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors


def average_gradients(parameters):
    grads = [p.grad for p in parameters]
    flat = _flatten_dense_tensors(grads)
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for grad, part in zip(grads, _unflatten_dense_tensors(flat, grads)):
        grad.copy_(part)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shard = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(8):
        x, y = torch.randn(16, 8, generator=shard), torch.randint(3, (16,), generator=shard)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        average_gradients(list(model.parameters()))
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
