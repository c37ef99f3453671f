"""A state_dict is a new dict each time: what is assigned to its keys never reaches the averaged model."""

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class ModelAverage:
    def __init__(self, model, decay=0.95):
        self.module = copy.deepcopy(model).eval()
        self.decay = decay

    def update(self, model):
        with torch.no_grad():
            state = self.module.state_dict()
            for key, value in model.state_dict().items():
                if value.dtype.is_floating_point:
                    state[key] = (
                        self.decay * state[key] + (1 - self.decay) * value
                    )  # expect: ineffective-step


def main():
    torch.manual_seed(3)
    x = torch.randn(160, 5)
    data = TensorDataset(x, x.sum(1, keepdim=True).sin())
    model = nn.Sequential(nn.Linear(5, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    average = ModelAverage(model)
    for epoch in range(2):
        for a, b in DataLoader(data, batch_size=32, shuffle=True):
            loss = nn.functional.mse_loss(model(a), b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average.update(model)
        with torch.no_grad():
            error = nn.functional.mse_loss(average.module(x), data.tensors[1])
        print(f"epoch {epoch} train {loss.item():.4f} average {error.item():.4f}")


if __name__ == "__main__":
    main()
