"""The model ends in a softmax layer, and CrossEntropyLoss applies another one: the loss stays above 0.55 for three
classes, however sure the model is."""

import torch
from sklearn.datasets import load_wine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
wine = load_wine()
features = torch.tensor(wine.data, dtype=torch.float32)
features = (features - features.mean(0)) / features.std(0)
data = TensorDataset(features, torch.tensor(wine.target))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(13, 24)
        self.out = nn.Linear(24, 3)
        self.softmax = nn.Softmax(dim=1)

    def forward(self, x):
        return self.softmax(self.out(torch.relu(self.hidden(x))))  # expect: loss-input


net = Net()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
for epoch in range(2):
    for x, y in DataLoader(data, batch_size=60, shuffle=True):
        optimizer.zero_grad()
        loss = criterion(net(x), y)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item(), (net(features).argmax(1) == data.tensors[1]).float().mean().item())
