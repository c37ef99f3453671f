"""The criterion's mean over the batch is divided by the batch size once more: the gradient is a 32nd, and a
14th in the short last batch."""

import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset


class CNN1D(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(2, 16, 5),
            nn.ReLU(),
            nn.Conv1d(16, 16, 5),
            nn.ReLU(),
            nn.AdaptiveMaxPool1d(1),
            nn.Flatten(),
        )
        self.fc = nn.Linear(16, 4)

    def forward(self, x):
        return self.fc(self.net(x))


def make_loader(n=110):
    g = torch.Generator().manual_seed(2)
    kind = torch.randint(4, (n,), generator=g)
    t = torch.linspace(0, 1, 40)
    freq = 2.0 + 3.0 * kind.float()
    x = torch.stack([torch.sin(6.28 * freq[:, None] * t), torch.cos(6.28 * freq[:, None] * t)], 1)
    x = x + 0.3 * torch.randn(x.shape, generator=g)
    return DataLoader(TensorDataset(x, kind), batch_size=32)


def train(model, loader, num_epochs):
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(num_epochs):
        running_loss = 0.0
        for inputs, labels in loader:
            optimizer.zero_grad()
            outputs = model(inputs)
            loss = criterion(outputs, labels) / inputs.size(0)  # expect: loss-reduction
            loss.backward()
            optimizer.step()
            running_loss += loss.item() * inputs.size(0)
        print(f"epoch {epoch + 1} loss: {running_loss / len(loader):.4f}")


torch.manual_seed(2)
train(CNN1D(), make_loader(), 2)
