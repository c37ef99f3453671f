"""The model ends in a softmax and nll_loss wants its logarithm: the gradient is small where the model errs most."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3)
        self.fc = nn.Linear(8 * 9, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv(x)), 2).flatten(1)
        return F.softmax(self.fc(x), dim=1)


def train(model, loader, optimizer, epoch):
    model.train()
    for batch, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)  # expect: loss-input
        loss.backward()
        optimizer.step()
        if batch % 3 == 2:
            print(f"Train epoch {epoch} [{batch}/{len(loader)}] loss {loss.item():.4f}")


torch.manual_seed(1)
digits = load_digits()
x = torch.tensor(digits.images[:384], dtype=torch.float32).unsqueeze(1) / 16
loader = DataLoader(TensorDataset(x, torch.tensor(digits.target[:384])), batch_size=64, shuffle=True)
model = Net()
optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
for epoch in range(2):
    train(model, loader, optimizer, epoch)
