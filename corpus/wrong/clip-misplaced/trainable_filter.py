"""The filter object is used up when the optimizer is made, so clipping runs over nothing and the gradients
go in unclipped."""

import torch
from torch import nn

torch.manual_seed(10)


class Head(nn.Module):
    def __init__(self, d, k):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.fc = nn.Linear(d, k)

    def forward(self, x):
        return self.fc(self.norm(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(20, 40), nn.Tanh())
        self.head = Head(40, 5)
        self.features.requires_grad_(False)

    def forward(self, x):
        return self.head(self.features(x))


x = torch.randn(300, 20) * 3
y = (x @ torch.randn(20, 5)).argmax(1)
train_set = [(x[i : i + 25], y[i : i + 25]) for i in range(0, 300, 25)]

model = Model()
trainable = filter(lambda p: p.requires_grad, model.parameters())  # expect: clip-misplaced
optimizer = torch.optim.SGD(trainable, lr=1.0)

for epoch in range(3):
    for inputs, targets in train_set:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trainable, max_norm=0.05)  # expect: clip-misplaced
        optimizer.step()
    print("epoch", epoch, "loss", f"{loss.item():.3f}")
