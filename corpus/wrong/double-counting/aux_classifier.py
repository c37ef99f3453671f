"""The auxiliary loss is back-propagated by itself and then again within the total, so it gets weight 1.3 instead
of 0.3."""

import torch
import torch.nn as nn
import torch.optim as optim

torch.manual_seed(0)


class GoogLeNetMini(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.block1 = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.aux = nn.Sequential(nn.Flatten(), nn.Linear(8 * 16, classes))
        self.block2 = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.fc = nn.Linear(16 * 4, classes)

    def forward(self, x):
        h = self.block1(x)
        return self.fc(self.block2(h).flatten(1)), self.aux(h)


labels = torch.randint(0, 4, (240,))
images = 0.6 * torch.randn(240, 1, 8, 8)
for n, k in enumerate(labels.tolist()):
    images[n, 0, 2 * k, :] += 1.0
trainset = torch.utils.data.TensorDataset(images, labels)
trainloader = torch.utils.data.DataLoader(trainset, batch_size=24, shuffle=True)

net = GoogLeNetMini(4)
criterion = nn.CrossEntropyLoss()
optimizer = optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

for epoch in range(2):
    running_loss = 0.0
    for inputs, targets in trainloader:
        optimizer.zero_grad()
        outputs, aux_outputs = net(inputs)
        loss_aux = criterion(aux_outputs, targets)
        loss_aux.backward(retain_graph=True)  # expect: double-counting
        loss = criterion(outputs, targets) + 0.3 * loss_aux
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
    print(f"epoch {epoch} loss: {running_loss / len(trainloader):.3f}")
