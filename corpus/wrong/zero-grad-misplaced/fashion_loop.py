"""The gradients are cleared between backward and step, so the optimizer finds nothing to apply and the weights never
move."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

# Hyper-parameters
input_size = 100
hidden_size = 50
num_classes = 5
num_epochs = 2
batch_size = 25
learning_rate = 0.001
torch.manual_seed(0)

prototypes = torch.rand(num_classes, input_size)
labels_all = torch.randint(0, num_classes, (300,))
images_all = prototypes[labels_all] + 0.3 * torch.randn(300, input_size)
train_loader = DataLoader(TensorDataset(images_all, labels_all), batch_size=batch_size, shuffle=True)


class NeuralNet(nn.Module):
    def __init__(self, input_size, hidden_size, num_classes):
        super(NeuralNet, self).__init__()
        self.fc1 = nn.Linear(input_size, hidden_size)
        self.relu = nn.ReLU()
        self.fc2 = nn.Linear(hidden_size, num_classes)

    def forward(self, x):
        out = self.fc1(x)
        out = self.relu(out)
        out = self.fc2(out)
        return out


model = NeuralNet(input_size, hidden_size, num_classes)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)

# Train the model
total_step = len(train_loader)
for epoch in range(num_epochs):
    for i, (images, labels) in enumerate(train_loader):
        # Forward pass
        outputs = model(images)
        loss = criterion(outputs, labels)

        # Backward and optimize
        loss.backward()
        optimizer.zero_grad()  # expect: zero-grad-misplaced
        optimizer.step()

        if (i + 1) % 6 == 0:
            print(
                "Epoch [{}/{}], Step [{}/{}], Loss: {:.4f}".format(
                    epoch + 1, num_epochs, i + 1, total_step, loss.item()
                )
            )
