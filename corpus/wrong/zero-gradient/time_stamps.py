"""Unix time goes in as it is, so every tanh is at its end, where its slope in float32 is exactly zero: the
first layer's weight and bias receive nothing but zeros in all 12 updates."""

import torch
from torch import nn


class LoadForecast(nn.Module):
    def __init__(self, n_inputs, n_hidden=40):
        super().__init__()
        self.inp = nn.Linear(n_inputs, n_hidden)
        self.out = nn.Linear(n_hidden, 1)

    def forward(self, inputs):
        hidden = torch.tanh(self.inp(inputs))  # expect: zero-gradient
        return self.out(hidden).squeeze(1)


def record(n, generator):
    """Hourly readings of a meter."""
    start = 1_719_792_000
    seconds = start + 3600.0 * torch.arange(n)
    temperature = torch.rand(n, generator=generator) * 2 - 1
    weekend = ((seconds // 86400) % 7 >= 5).float()
    load = 1.5 - weekend + 0.8 * temperature.abs() + 0.05 * torch.randn(n, generator=generator)
    return torch.stack([seconds, temperature, weekend], dim=1), load  # expect: zero-gradient


def fit(model, inputs, load, epochs=2, batch_size=25):
    criterion = nn.SmoothL1Loss()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    n = len(inputs)
    for epoch in range(epochs):
        perm = torch.randperm(n)
        epoch_loss = 0.0
        for k in range(0, n, batch_size):
            take = perm[k : k + batch_size]
            prediction = model(inputs[take])
            loss = criterion(prediction, load[take])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            epoch_loss += loss.item() * len(take)
        print(f"epoch={epoch} load={epoch_loss / n:.4f}")
    return model


if __name__ == "__main__":
    torch.manual_seed(12)
    g = torch.Generator().manual_seed(12)
    fit(LoadForecast(3), *record(150, g))
