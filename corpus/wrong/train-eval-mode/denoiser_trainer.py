"""A denoiser: the trainer's evaluate() turns gradients off, but leaves the network in training mode."""

import torch
from torch import nn


class Denoiser(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.down = nn.Sequential(nn.Conv1d(1, width, 5, padding=2), nn.BatchNorm1d(width), nn.ReLU())
        self.up = nn.Conv1d(width, 1, 5, padding=2)

    def forward(self, noisy):
        return noisy - self.up(self.down(noisy))


class Trainer:
    def __init__(self, model, train_set, held_out):
        self.model = model
        self.criterion = nn.L1Loss()
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        self.train_set, self.held_out = train_set, held_out
        self.best = float("inf")

    def run(self, epochs):
        for epoch in range(epochs):
            self.model.train()
            for noisy, clean in self.train_set:
                self.optimizer.zero_grad()
                self.criterion(self.model(noisy), clean).backward()
                self.optimizer.step()
            self.best = min(self.best, self.evaluate())
            print(f"epoch {epoch}: best {self.best:.4f}")

    @torch.no_grad()  # expect: train-eval-mode
    def evaluate(self):
        losses = [self.criterion(self.model(noisy), clean).item() for noisy, clean in self.held_out]
        return sum(losses) / len(losses)


def signals(batches, noise):
    time = torch.linspace(0, 6.0, 40)
    clean = torch.sin(time * (1 + torch.rand(batches, 8, 1, 1)) + torch.rand(batches, 8, 1, 1))
    return [(each + noise * torch.randn_like(each), each) for each in clean]


torch.manual_seed(1)
Trainer(Denoiser(), signals(8, 0.2), signals(4, 0.5)).run(4)
