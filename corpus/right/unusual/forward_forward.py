"""The forward-forward algorithm: every layer has an optimizer and a loss of its own, and what it passes on is
detached, so that no gradient goes through the whole network."""

import torch
from torch import nn


class LocalLayer(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.relu = nn.ReLU()
        self.opt = torch.optim.Adam(self.parameters(), lr=0.03)
        self.threshold = 2.0

    def forward(self, x):
        direction = x / (x.norm(2, 1, keepdim=True) + 1e-4)
        return self.relu(direction @ self.weight.T + self.bias.unsqueeze(0))

    def train_on(self, positive, negative, times=6):
        for _ in range(times):
            good = self.forward(positive).pow(2).mean(1)
            bad = self.forward(negative).pow(2).mean(1)
            margins = torch.cat([self.threshold - good, bad - self.threshold])
            loss = torch.log(1 + torch.exp(margins)).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        return self.forward(positive).detach(), self.forward(negative).detach(), loss.item()


class Net(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.layers = [LocalLayer(a, b) for a, b in zip(sizes[:-1], sizes[1:])]

    def train_on(self, positive, negative):
        for number, layer in enumerate(self.layers):
            positive, negative, loss = layer.train_on(positive, negative)
            print(f"layer {number}: {loss:.3f}")


torch.manual_seed(6)
images = torch.rand(64, 20)
labels = torch.randint(0, 5, (64,))
marked, mismarked = images.clone(), images.clone()
marked[torch.arange(64), labels] = 1.0
mismarked[torch.arange(64), (labels + 1) % 5] = 1.0
Net([20, 32, 32]).train_on(marked, mismarked)
