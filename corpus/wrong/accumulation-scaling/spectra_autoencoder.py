"""The accumulated gradients are averaged over the number of batches in the epoch instead of the number in the window, so every update is four times too small."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Denoiser(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(width, 20), nn.ELU(), nn.Linear(20, 6))
        self.decoder = nn.Sequential(nn.Linear(6, 20), nn.ELU(), nn.Linear(20, width))

    def forward(self, x):
        return self.decoder(self.encoder(x))


def make_spectra(n, width=40):
    grid = torch.linspace(0, 1, width)
    centre = torch.rand(n, 1)
    sharp = 30 + 40 * torch.rand(n, 1)
    clean = torch.exp(-sharp * (grid - centre) ** 2)
    return clean, clean + 0.05 * torch.randn(n, width)


def average_gradients(module, count):
    for p in module.parameters():
        if p.grad is not None:
            p.grad.div_(count)


def train_epoch(model, loader, optimizer, window):
    model.train()
    criterion = nn.MSELoss()
    total = 0.0
    for i, (clean, noisy) in enumerate(loader, 1):
        loss = criterion(model(noisy), clean)
        loss.backward()
        total += loss.item()
        if i % window == 0:
            average_gradients(model, len(loader))  # expect: accumulation-scaling
            optimizer.step()
            optimizer.zero_grad()
    return total / len(loader)


def evaluate(model, clean, noisy):
    model.eval()
    with torch.no_grad():
        return nn.functional.mse_loss(model(noisy), clean).item()


def main():
    torch.set_num_threads(1)
    torch.manual_seed(5)
    clean, noisy = make_spectra(192)
    test = make_spectra(64)
    loader = DataLoader(TensorDataset(clean, noisy), batch_size=16, shuffle=True)
    model = Denoiser()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for epoch in range(3):
        train_loss = train_epoch(model, loader, optimizer, window=3)
        print(f"{epoch}\ttrain {train_loss:.5f}\ttest {evaluate(model, *test):.5f}")


main()
