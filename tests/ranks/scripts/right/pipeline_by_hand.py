"""Rank 0 has the front of the model, rank 1 the back; activations and their gradients travel between them."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def front(steps, batch):
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        h = model(torch.randn(batch, 8))
        dist.send(h.detach(), dst=1)
        grad = torch.empty_like(h)
        dist.recv(grad, src=1)
        optimizer.zero_grad()
        h.backward(grad)
        optimizer.step()


def back(steps, batch):
    model = nn.Linear(16, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        h = torch.empty(batch, 16)
        dist.recv(h, src=0)
        h.requires_grad_()
        loss = F.cross_entropy(model(h), torch.randint(3, (batch,)))
        optimizer.zero_grad()
        loss.backward()
        dist.send(h.grad, dst=0)
        optimizer.step()
    print(loss.item())


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    stage = front if dist.get_rank() == 0 else back
    stage(steps=6, batch=16)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
