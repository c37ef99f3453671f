"""Gradients go over the wire in one flat tensor and come back as a sum over the ranks, which nothing divides."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors


def sync(parameters):
    grads = [p.grad for p in parameters]
    flat = _flatten_dense_tensors(grads)
    dist.all_reduce(flat)  # expect: ddp-sync
    for grad, part in zip(grads, _unflatten_dense_tensors(flat, grads)):
        grad.copy_(part)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(160, 8)
    xs, ys = data[rank::world] * 2, data[rank::world, :3].argmax(1)
    for x, y in zip(xs.split(16), ys.split(16)):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        sync(list(model.parameters()))
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
