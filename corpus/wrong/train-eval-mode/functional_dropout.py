"""F.dropout is called without `training=self.training`, so units are still dropped when the model is in evaluation
mode."""

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset, random_split


class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.conv1 = nn.Conv2d(1, 10, kernel_size=3)
        self.conv2 = nn.Conv2d(10, 20, kernel_size=3)
        self.fc1 = nn.Linear(80, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        x = x.view(-1, 80)
        x = F.relu(self.fc1(x))
        x = F.dropout(x, p=0.5)  # expect: train-eval-mode
        x = self.fc2(x)
        return F.log_softmax(x, dim=1)


def train(model, loader, optimizer):
    model.train()
    for data, target in loader:
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
    return loss.item()


def test(model, loader):
    model.eval()
    correct = 0
    with torch.no_grad():
        for data, target in loader:
            correct += model(data).argmax(dim=1).eq(target).sum().item()
    return 100.0 * correct / len(loader.dataset)


torch.manual_seed(1)
digits = load_digits()
full = TensorDataset(
    torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1), torch.tensor(digits.target)
)
train_set, test_set, _ = random_split(full, [640, 200, len(full) - 840])
train_loader = DataLoader(train_set, batch_size=64, shuffle=True)
test_loader = DataLoader(test_set, batch_size=100)

model = Net()
optimizer = optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(1, 4):
    loss = train(model, train_loader, optimizer)
    print("Train Epoch: {} Loss: {:.4f} Test accuracy: {:.1f}%".format(epoch, loss, test(model, test_loader)))
