"""Regression of strains of a millionth under float16 autocast, without a gradient scaler: the gradients are about
1e-9, which float16 rounds to zero, so only the last bias learns."""

import torch
from torch import nn

torch.manual_seed(0)
sensors = torch.randn(256, 6)
strain = 1e-4 * torch.tanh(sensors @ torch.randn(6, 1)) + 2e-5


class Strain(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.readout = nn.Linear(width, 1)
        nn.init.normal_(self.readout.weight, std=1e-4)
        nn.init.zeros_(self.readout.bias)

    def forward(self, x):
        return self.readout(self.encoder(x))


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def train_step(self, x, y):
        self.optimizer.zero_grad()
        with torch.autocast(device_type="cpu", dtype=torch.float16):
            loss = nn.functional.huber_loss(self.model(x).float(), y)
        loss.backward()  # expect: zero-gradient
        self.optimizer.step()
        return loss.item()


trainer = Trainer(Strain())
for epoch in range(3):
    losses = [trainer.train_step(x, y) for x, y in zip(sensors.split(32), strain.split(32))]
    print(f"{epoch} {sum(losses) / len(losses):.3e}")
