"""The head is exchanged for one with five classes after the optimizer was made, so the new head is never updated."""

import torch
import torch.nn as nn

torch.manual_seed(0)


class Backbone(nn.Module):
    def __init__(self, num_classes=10):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.fc = nn.Linear(16, num_classes)

    def forward(self, x):
        return self.fc(self.features(x))


class FlowerData(torch.utils.data.Dataset):
    def __init__(self, n=150, n_classes=5):
        self.y = torch.randint(0, n_classes, (n,))
        tint = torch.rand(n_classes, 3)
        self.x = tint[self.y][:, :, None, None] + 0.3 * torch.randn(n, 3, 8, 8)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


model = Backbone(num_classes=10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)  # expect: stale-optimizer-params

# fine-tune on 5 kinds of flowers
model.fc = nn.Linear(model.fc.in_features, 5)  # expect: stale-optimizer-params
loader = torch.utils.data.DataLoader(FlowerData(), batch_size=15, shuffle=True)
criterion = nn.CrossEntropyLoss()

for epoch in range(3):
    running_loss, running_corrects = 0.0, 0
    for inputs, labels in loader:
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        running_loss += loss.item() * len(labels)
        running_corrects += (outputs.argmax(1) == labels).sum().item()
    print(f"Epoch {epoch} Loss: {running_loss / 150:.4f} Acc: {running_corrects / 150:.4f}")
