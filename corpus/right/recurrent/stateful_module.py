"""Looks like a graph kept from step to step: the module keeps its state, but detached, and resets it each
epoch."""

import torch
from torch import nn


class StatefulGRU(nn.Module):
    def __init__(self, n_in, n_hidden):
        super().__init__()
        self.cell = nn.GRUCell(n_in, n_hidden)
        self.readout = nn.Linear(n_hidden, n_in)
        self.state = None

    def reset(self):
        self.state = None

    def forward(self, frames):
        h = self.state if self.state is not None else frames.new_zeros(frames.shape[1], self.cell.hidden_size)
        predictions = []
        for frame in frames:
            h = self.cell(frame, h)
            predictions.append(self.readout(h))
        self.state = h.detach()
        return torch.stack(predictions)


def pendulums(n, length):
    angle, speed = torch.rand(n) * 2 - 1, torch.zeros(n)
    frames = []
    for _ in range(length):
        speed = speed - 0.1 * torch.sin(angle)
        angle = angle + 0.1 * speed
        frames.append(torch.stack([angle, speed], -1))
    return torch.stack(frames)


def main():
    torch.manual_seed(0)
    series = pendulums(16, 81)
    net = StatefulGRU(2, 24)
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    for epoch in range(2):
        net.reset()
        losses = []
        for x, y in zip(series[:-1].split(20), series[1:].split(20)):
            opt.zero_grad()
            loss = (net(x) - y).square().mean()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        print(f"epoch {epoch}:", " ".join(f"{v:.4f}" for v in losses))


if __name__ == "__main__":
    main()
