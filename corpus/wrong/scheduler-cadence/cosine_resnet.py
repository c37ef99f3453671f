"""A cosine over 4 epochs is advanced at each of the 6 batches of an epoch: the rate is 0 at the fifth batch
and goes up and down three times in place of falling once.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


class BasicBlock(nn.Module):
    def __init__(self, planes):
        super().__init__()
        self.conv1 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + x)


class ResNet(nn.Module):
    def __init__(self, num_classes=4):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.layers = nn.Sequential(BasicBlock(8), nn.MaxPool2d(2), BasicBlock(8))
        self.linear = nn.Linear(8, num_classes)

    def forward(self, x):
        return self.linear(self.layers(self.stem(x)).mean((2, 3)))


targets = torch.randint(4, (96,))
inputs = torch.randn(96, 3, 8, 8) + targets.view(-1, 1, 1, 1) * 0.5
trainloader = DataLoader(TensorDataset(inputs, targets), batch_size=16, shuffle=True)

num_epochs = 4
net = ResNet()
criterion = nn.CrossEntropyLoss()
optimizer = optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=num_epochs)  # expect: scheduler-cadence

for epoch in range(num_epochs):
    net.train()
    train_loss, correct = 0.0, 0
    for batch_idx, (x, y) in enumerate(trainloader):
        optimizer.zero_grad()
        outputs = net(x)
        loss = criterion(outputs, y)
        loss.backward()
        optimizer.step()
        scheduler.step()  # expect: scheduler-cadence

        train_loss += loss.item()
        correct += outputs.argmax(1).eq(y).sum().item()
    print(
        f"Epoch {epoch} | Loss: {train_loss / (batch_idx + 1):.3f} | Acc: {100.0 * correct / len(targets):.1f}%"
    )
