"""A pretext task trains the network, then a probe; the last layer is unfrozen after the probe's optimizer was made."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(12, 16)
        self.last = nn.Linear(16, 8)
        self.rotations = nn.Linear(8, 4)
        self.classes = nn.Linear(8, 3)

    def forward(self, x, head):
        return head(torch.tanh(self.last(torch.tanh(self.stem(x)))))


def train(model, head, optimizer, targets, epochs):
    for epoch in range(epochs):
        if head is model.classes and epoch == 2:
            for parameter in model.last.parameters():  # expect: param-not-in-optimizer
                parameter.requires_grad = True
        for rows, wanted in zip(x.split(16), targets.split(16)):
            loss = F.cross_entropy(model(rows, head), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


x = torch.randn(64, 12)
model = Net()
pretext = torch.optim.Adam(model.parameters(), lr=0.01)
train(model, model.rotations, pretext, torch.randint(4, (64,)), 2)
for parameter in model.parameters():
    parameter.requires_grad = False
model.classes.requires_grad_(True)
probing = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01)
train(model, model.classes, probing, torch.randint(3, (64,)), 5)
