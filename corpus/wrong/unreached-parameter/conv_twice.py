"""`forward` applies conv2 twice and conv3 never, so conv3 gets no gradient and is not part of the network."""

import torch
import torch.nn as nn
import torch.optim as optim
from sklearn.datasets import load_digits

torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
images = torch.tensor(images[:600], dtype=torch.float32).view(-1, 1, 8, 8) / 16
labels = torch.tensor(labels[:600])


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 16, 3, padding=1)
        self.conv3 = nn.Conv2d(16, 16, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(16 * 2 * 2, 10)

    def forward(self, x):
        x = self.pool(torch.relu(self.conv1(x)))
        x = torch.relu(self.conv2(x))
        x = self.pool(torch.relu(self.conv2(x)))  # expect: unreached-parameter
        return self.fc(torch.flatten(x, 1))


net = ConvNet()
criterion = nn.CrossEntropyLoss()
optimizer = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

for epoch in range(2):
    running_loss = 0.0
    for i in range(0, len(images), 60):
        inputs, target = images[i : i + 60], labels[i : i + 60]
        optimizer.zero_grad()
        loss = criterion(net(inputs), target)
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
    print("[%d] loss: %.3f" % (epoch + 1, running_loss / 10))
print("Finished Training")
