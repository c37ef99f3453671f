"""A layer that scales each feature keeps its gain as a plain tensor, so the optimizer, which a trainer makes of the
model's parameters, never gets it."""

import torch
from torch import nn


class Gain(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = torch.ones(width, requires_grad=True)  # expect: param-not-in-optimizer

    def forward(self, x):
        return x * self.gain


class Regressor(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = Gain(width)
        self.fc = nn.Linear(width, 16)
        self.out = nn.Linear(16, 1)

    def forward(self, x):
        return self.out(torch.tanh(self.fc(self.gain(x)))).squeeze(1)


class Trainer:
    def __init__(self, model, lr=1e-2):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def fit(self, x, y, steps):
        for _ in range(steps):
            loss = nn.functional.smooth_l1_loss(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item()


torch.manual_seed(0)
inputs = torch.randn(64, 8)
trainer = Trainer(Regressor(8))
print(f"{trainer.fit(inputs, inputs[:, 0] * 3, 16):.4f}")
