"""The two blocks of each stage are one block: the network has half of the convolutions that it was meant to have."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return x + self.conv2(F.relu(self.conv1(F.relu(x))))


class Stage(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.blocks = nn.ModuleList([Block(width)] * depth)  # expect: repeated-module

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.stage = Stage(8, 2)
        self.fc = nn.Linear(8, 10)

    def forward(self, x):
        return self.fc(self.stage(self.stem(x)).mean((2, 3)))


digits = load_digits()
images = torch.tensor(digits.images[:320], dtype=torch.float32).unsqueeze(1) / 16
loader = DataLoader(TensorDataset(images, torch.tensor(digits.target[:320])), batch_size=64, shuffle=True)
net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for epoch in range(2):
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch}: {total / len(loader):.3f}")
