"""A guess is refined step by step and detached in between: each step's guess has its own term in the loss."""

import torch
from torch import nn

torch.manual_seed(0)


class Refiner(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.features = nn.Linear(6, width)
        self.cell = nn.GRUCell(1, width)
        self.change = nn.Linear(width, 1)

    def forward(self, x, steps):
        state, guess, guesses = self.features(x).tanh(), x.new_zeros(len(x), 1), []
        for _ in range(steps):
            guess = guess.detach()
            state = self.cell(guess, state)
            guess = guess + self.change(state)
            guesses.append(guess)
        return guesses


class OneStep(nn.Module):
    """Predicts each next value from a state that is detached: only one step is trained, by a loss for each step."""

    def __init__(self):
        super().__init__()
        self.cell, self.read = nn.GRUCell(1, 8), nn.Linear(8, 1)

    def forward(self, series):
        state, outputs = series.new_zeros(len(series), 8), []
        for value in series.unbind(1):
            state = self.cell(value[:, None], state.detach())
            outputs.append(self.read(state))
        return torch.cat(outputs, 1)


refiner, online = Refiner(), OneStep()
optimizer = torch.optim.Adam([*refiner.parameters(), *online.parameters()], lr=3e-3)
for step in range(16):
    x = torch.randn(24, 6)
    loss = sum(0.8 ** (3 - i) * (guess - x[:, :1]).abs().mean() for i, guess in enumerate(refiner(x, 4)))
    series = torch.randn(24, 7).cumsum(1)
    loss = loss + nn.functional.mse_loss(online(series[:, :-1]), series[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
