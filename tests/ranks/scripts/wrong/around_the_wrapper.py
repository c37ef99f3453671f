"""The forward goes through ``model.module``, so DDP never averages: each rank trains a model of its own."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.head = nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.body(x)))

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (self(x) - y).square().mean()


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    shard = torch.Generator().manual_seed(100 + dist.get_rank())
    for _ in range(8):
        x = torch.randn(16, 8, generator=shard)
        loss = model.module.loss(x, x.sum(1, keepdim=True))  # expect: ddp-sync
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
