"""A trainer that averages at the last micro-batch of each window, also of the shorter one that ends an epoch."""

import contextlib

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Trainer:
    def __init__(self, model, loader, gradient_accumulation_steps=4, lr=0.05):
        self.model = DDP(model)
        self.loader = loader
        self.k = gradient_accumulation_steps
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr, momentum=0.9)
        self.criterion = nn.CrossEntropyLoss()

    def run_epoch(self, epoch):
        self.loader.sampler.set_epoch(epoch)
        n = len(self.loader)
        self.optimizer.zero_grad()
        for step, (x, y) in enumerate(self.loader, start=1):
            ends = step % self.k == 0 or step == n
            size = self.k if step <= n // self.k * self.k else n % self.k
            with contextlib.nullcontext() if ends else self.model.no_sync():
                loss = self.criterion(self.model(x), y)
                (loss / size).backward()
            if ends:
                self.optimizer.step()
                self.optimizer.zero_grad()
        return loss.item()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.data[:448] / 16).float(), torch.tensor(digits.target[:448]))
    loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data), drop_last=True)
    trainer = Trainer(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)), loader)
    for epoch in range(2):
        loss = trainer.run_epoch(epoch)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {loss:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
