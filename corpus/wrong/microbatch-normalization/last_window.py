"""The window that is flushed at the end of an epoch holds two micro-batches, but they are divided by four as well: its
gradient is half of what it should be."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class AutoEncoder(nn.Module):
    def __init__(self, n_in=20, n_hidden=6):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(n_in, 16), nn.ELU(), nn.Linear(16, n_hidden))
        self.decoder = nn.Sequential(nn.Linear(n_hidden, 16), nn.ELU(), nn.Linear(16, n_in))

    def forward(self, x):
        return self.decoder(self.encoder(x))


class Runner:
    def __init__(self, accumulation_steps=4, seed=9):
        torch.manual_seed(seed)
        basis = torch.randn(6, 20)
        self.loader = DataLoader(TensorDataset(torch.randn(160, 6) @ basis), batch_size=16, shuffle=True)
        self.model = AutoEncoder()
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.accumulation_steps = accumulation_steps

    def run_epoch(self):
        self.model.train()
        num_batches = len(self.loader)
        total = 0.0
        for i, (x,) in enumerate(self.loader, start=1):
            loss = (self.model(x) - x).pow(2).mean()
            total += loss.item()
            loss = loss / self.accumulation_steps  # expect: microbatch-normalization
            loss.backward()
            if i % self.accumulation_steps == 0 or i == num_batches:
                self.opt.step()
                self.opt.zero_grad()
        return total / num_batches


runner = Runner()
for epoch in range(4):
    mse = runner.run_epoch()
print(f"reconstruction error after {epoch + 1} epochs: {mse:.4f}")
