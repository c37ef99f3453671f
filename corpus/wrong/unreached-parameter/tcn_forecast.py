"""The loop over the convolution blocks starts at index 1, so the first block is skipped and its parameters never get a gradient."""

from typing import NamedTuple

import torch
from torch import nn


class Series(NamedTuple):
    past: torch.Tensor
    future: torch.Tensor


def make_windows(n: int, past: int = 24, future: int = 4) -> Series:
    t = torch.arange(past + future).float()
    phase = 6.28 * torch.rand(n, 1)
    period = 6 + 6 * torch.rand(n, 1)
    wave = torch.sin(6.28 * t / period + phase) + 0.05 * torch.randn(n, past + future)
    return Series(wave[:, :past], wave[:, past:])


class CausalBlock(nn.Module):
    def __init__(self, channels: int, dilation: int):
        super().__init__()
        self.pad = nn.ConstantPad1d((2 * dilation, 0), 0.0)
        self.conv = nn.Conv1d(channels, channels, 3, dilation=dilation)
        self.act = nn.Softplus()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.act(self.conv(self.pad(x)))


class TCN(nn.Module):
    def __init__(self, channels: int = 8, n_blocks: int = 3, future: int = 4):
        super().__init__()
        self.inp = nn.Conv1d(1, channels, 1)
        self.blocks = nn.ModuleList(CausalBlock(channels, 2**i) for i in range(n_blocks))
        self.out = nn.Linear(channels, future)

    def forward(self, past: torch.Tensor) -> torch.Tensor:
        h = self.inp(past.unsqueeze(1))
        for i in range(1, len(self.blocks)):  # expect: unreached-parameter
            h = self.blocks[i](h)
        return self.out(h[:, :, -1])


class Forecaster:
    def __init__(self, model: nn.Module, lr: float):
        self.model = model
        self.optimizer = torch.optim.RAdam(model.parameters(), lr=lr)
        self.loss = nn.HuberLoss(delta=0.5)

    def fit(self, data: Series, epochs: int, batch_size: int) -> list[float]:
        history = []
        for _ in range(epochs):
            self.model.train()
            running = []
            for idx in torch.randperm(len(data.past)).split(batch_size):
                self.optimizer.zero_grad()
                loss = self.loss(self.model(data.past[idx]), data.future[idx])
                loss.backward()
                self.optimizer.step()
                running.append(float(loss.detach()))
            history.append(sum(running) / len(running))
        return history

    @torch.no_grad()
    def mae(self, data: Series) -> float:
        self.model.eval()
        return (self.model(data.past) - data.future).abs().mean().item()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(23)
    forecaster = Forecaster(TCN(), lr=1e-2)
    history = forecaster.fit(make_windows(200), epochs=3, batch_size=25)
    print("loss per epoch", [round(h, 4) for h in history])
    print("test mae", round(forecaster.mae(make_windows(50)), 4))
