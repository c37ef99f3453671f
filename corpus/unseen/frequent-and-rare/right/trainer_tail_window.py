"""Trainer with accumulation. The number of batches is not a multiple of the window; the short
last window is stepped too, and its losses are divided by its own length."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self, model, loader, lr=0.1, accumulate=4):
        self.model = model
        self.loader = loader
        self.accumulate = accumulate
        self.criterion = nn.MSELoss()
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        self.global_step = 0

    def window_size(self, i):
        n = len(self.loader)
        start = (i // self.accumulate) * self.accumulate
        return min(self.accumulate, n - start)

    def train_epoch(self):
        self.model.train()
        total, seen = 0.0, 0
        for i, (x, y) in enumerate(self.loader):
            loss = self.criterion(self.model(x), y)
            (loss / self.window_size(i)).backward()
            if (i + 1) % self.accumulate == 0 or i + 1 == len(self.loader):
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.global_step += 1
            total += loss.item() * len(x)
            seen += len(x)
        return total / seen

    def fit(self, epochs):
        log = []
        for _ in range(epochs):
            log.append(self.train_epoch())
        return log


def make_data(n=208, d=6):
    g = torch.Generator().manual_seed(11)
    x = torch.randn(n, d, generator=g)
    w = torch.randn(d, 1, generator=g)
    y = torch.tanh(x @ w) + 0.05 * torch.randn(n, 1, generator=g)
    return TensorDataset(x, y)


if __name__ == "__main__":
    torch.manual_seed(11)
    loader = DataLoader(make_data(), batch_size=16, shuffle=True)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    trainer = Trainer(net, loader)
    losses = trainer.fit(epochs=6)
    print("epochs:", " ".join(f"{v:.4f}" for v in losses))
    print("optimizer steps:", trainer.global_step)
