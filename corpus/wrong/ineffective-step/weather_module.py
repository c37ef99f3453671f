"""training_step calls optimizer.step() before backward, right after the gradients were cleared, so every step finds nothing to apply."""

import abc

import torch
from torch import nn


class Module(nn.Module, abc.ABC):
    """A little Lightning-like base class."""

    @abc.abstractmethod
    def configure_optimizer(self): ...

    @abc.abstractmethod
    def compute_loss(self, batch): ...

    def training_step(self, batch):
        self.optimizer.zero_grad()
        loss = self.compute_loss(batch)
        self.optimizer.step()  # expect: ineffective-step
        loss.backward()
        return loss.item()

    def fit(self, batches, epochs):
        self.optimizer = self.configure_optimizer()
        self.train()
        return [self._epoch(batches) for _ in range(epochs)]

    def _epoch(self, batches):
        losses = [self.training_step(b) for b in batches]
        return sum(losses) / len(losses)


class WeatherModel(Module):
    def __init__(self, n_stations=4, hidden=20):
        super().__init__()
        self.station = nn.Embedding(n_stations, 3)
        self.net = nn.Sequential(nn.Linear(5, hidden), nn.Softplus(), nn.Linear(hidden, 2))

    def forward(self, station, day):
        angle = day * 2 * torch.pi / 365
        h = torch.cat([self.station(station), angle.sin()[:, None], angle.cos()[:, None]], dim=1)
        mean, raw = self.net(h).unbind(1)
        return mean, nn.functional.softplus(raw) + 1e-3

    def compute_loss(self, batch):
        station, day, temperature = batch
        mean, std = self(station, day)
        return -torch.distributions.Normal(mean, std).log_prob(temperature).mean()

    def configure_optimizer(self):
        return torch.optim.Adagrad(self.parameters(), lr=0.1)


def measurements(n_batches, size, n_stations=4):
    offset = torch.linspace(-1, 1, n_stations)
    for _ in range(n_batches):
        station = torch.randint(0, n_stations, (size,))
        day = torch.rand(size) * 365
        temperature = offset[station] - torch.cos(day * 2 * torch.pi / 365) + 0.2 * torch.randn(size)
        yield station, day, temperature


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(37)
    model = WeatherModel()
    history = model.fit(list(measurements(8, 32)), epochs=3)
    model.eval()
    with torch.no_grad():
        test_nll = model.compute_loss(next(measurements(1, 200))).item()
    print("train nll", [round(h, 4) for h in history])
    print("test nll", round(test_nll, 4))
