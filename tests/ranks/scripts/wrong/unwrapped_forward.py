"""The trainer keeps the bare module to reach its methods, and trains through it: nothing is averaged."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(12, 24)
        self.head = nn.Linear(24, 4)

    def encode(self, x):
        return F.relu(self.encoder(x))

    def forward(self, x):
        return self.head(self.encode(x))


def unwrap(model):
    return model.module if isinstance(model, DistributedDataParallel) else model


def train_epoch(model, batches, optimizer):
    model.train()
    net = unwrap(model)
    for x, y in batches:
        features = net.encode(x)
        loss = F.cross_entropy(net.head(features), y) + 1e-3 * features.square().mean()  # expect: ddp-sync
        optimizer.zero_grad()
        loss.backward()  # expect: ddp-sync
        optimizer.step()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    model = DistributedDataParallel(Classifier())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(100 + dist.get_rank())
    batches = [(torch.randn(8, 12), torch.randint(4, (8,))) for _ in range(5)]
    for _ in range(2):
        train_epoch(model, batches, optimizer)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
