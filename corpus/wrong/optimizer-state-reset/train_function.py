"""train() makes its own Adam, so the moments start from zero in every epoch: Adam counts to 4 four times in place
of once to 16, and the weights end off by a third of the way that they go."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.conv1 = nn.Conv2d(1, 8, 3)
        self.conv2 = nn.Conv2d(8, 16, 3)
        self.fc1 = nn.Linear(16 * 4, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return F.log_softmax(self.fc1(torch.flatten(x, 1)), dim=1)


def train(model, train_loader, epoch, lr=2e-3):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)  # expect: optimizer-state-reset
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()
    print("Train Epoch: {}\tLoss: {:.6f}".format(epoch, loss.item()))


def test(model, data, target):
    model.eval()
    with torch.no_grad():
        pred = model(data).argmax(dim=1)
    print("Test set: Accuracy: {:.1f}%".format(100.0 * (pred == target).float().mean().item()))


def main():
    torch.manual_seed(1)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    train_set = torch.utils.data.TensorDataset(images[:256], labels[:256])
    train_loader = torch.utils.data.DataLoader(train_set, batch_size=64, shuffle=True)
    model = Net()
    for epoch in range(1, 5):
        train(model, train_loader, epoch)
        test(model, images[256:512], labels[256:512])


if __name__ == "__main__":
    main()
