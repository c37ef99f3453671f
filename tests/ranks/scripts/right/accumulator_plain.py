"""gradgate's accumulator over plain parameters: it adds up over ranks by itself."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import gradgate as gg


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(112, 8), torch.randint(3, (112,)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    accumulator = gg.Accumulator(torch.optim.AdamW(model.parameters(), lr=1e-2), model=model)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for window in gg.windows(loader, size=3):
            with accumulator.update() as update:
                for x, y in update.micro_batches(window):
                    update.backward(
                        F.cross_entropy(model(x), y, reduction="sum"), count=len(y), reduction="sum"
                    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
