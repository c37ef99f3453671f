# A forecaster predicts several days. Its training step assigns the error of each day, where it should add the errors up.
import torch
from torch import nn


class Forecaster(nn.Module):
    def __init__(self, hidden=16):
        super().__init__()
        self.encoder = nn.GRU(2, hidden, batch_first=True)
        self.cell = nn.GRUCell(1, hidden)
        self.out = nn.Linear(hidden, 1)

    def training_step(self, past, future):
        _, hidden = self.encoder(past)
        hidden, last = hidden[0], past[:, -1, :1]
        total = torch.tensor(0.0)
        for day in range(future.shape[1]):
            hidden = self.cell(last, hidden)
            last = self.out(hidden)
            error = self.error(last, future[:, day])  # expect: term-left-out
            total = error
        return total

    @staticmethod
    def error(predicted, observed):
        difference = predicted.squeeze(1) - observed
        return difference.square().mean()


torch.manual_seed(0)
model = Forecaster()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for step in range(12):
    past = torch.randn(16, 6, 2)
    future = past[:, :3, 0].cumsum(1)
    loss = model.training_step(past, future)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.4f}")
