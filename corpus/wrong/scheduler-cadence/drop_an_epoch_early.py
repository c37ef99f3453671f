"""An old trainer begins each epoch with the scheduler, as before torch 1.1: the drop at epoch 3 comes at epoch 2."""

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(7, 14), nn.ELU(), nn.Linear(14, 3))

    def forward(self, inputs):
        return self.layers(inputs)


def epochs(optimizer, total):
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3], gamma=0.1)
    for epoch in range(total):
        schedule.step()  # expect: scheduler-cadence
        yield epoch


torch.manual_seed(4)
inputs = torch.randn(80, 7)
classes = inputs[:, :3].argmax(1)
model = Classifier()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
criterion = nn.CrossEntropyLoss()
for epoch in epochs(optimizer, 5):
    for rows in torch.randperm(80).split(20):
        optimizer.zero_grad()
        loss = criterion(model(inputs[rows]), classes[rows])
        loss.backward()
        optimizer.step()
    print(epoch, round(loss.item(), 3))
