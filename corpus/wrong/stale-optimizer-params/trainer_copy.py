"""The trainer trains a copy of the model, and the optimizer that it is given steps the original: no weight
moves in 8 steps, and the loss stays at 2.9 instead of 2.2."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class Trainer:
    def __init__(self, model, optimizer, temperature=0.1):
        self.model = copy.deepcopy(model)  # expect: stale-optimizer-params
        self.optimizer = optimizer
        self.temperature = temperature
        self.history = []

    def nt_xent(self, z1, z2):
        z = F.normalize(torch.cat([z1, z2]), dim=1)
        sim = z @ z.t() / self.temperature
        sim = sim.masked_fill(torch.eye(len(z), dtype=torch.bool), -1e9)
        n = len(z1)
        target = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
        return F.cross_entropy(sim, target)

    @staticmethod
    def augment(x):
        return x * (torch.rand_like(x) > 0.2) + 0.1 * torch.randn_like(x)

    def training_step(self, x):
        return self.nt_xent(self.model(self.augment(x)), self.model(self.augment(x)))

    def fit(self, loader, epochs):
        for epoch in range(epochs):
            for x in loader:
                self.model.zero_grad()
                loss = self.training_step(x)
                loss.backward()
                self.optimizer.step()
                self.history.append(loss.item())
            print(f"epoch {epoch}: nt-xent {self.history[-1]:.4f}")
        return self.model


def main():
    torch.manual_seed(30)
    features = torch.randn(144, 20) + 2 * torch.randn(6, 20).repeat_interleave(24, 0)
    loader = torch.utils.data.DataLoader(features, batch_size=36, shuffle=True)
    encoder = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 16))
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1, momentum=0.9)
    Trainer(encoder, optimizer).fit(loader, epochs=2)


if __name__ == "__main__":
    main()
