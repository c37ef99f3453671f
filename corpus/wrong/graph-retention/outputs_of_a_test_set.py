"""The outputs of a whole test set are kept with their graphs, and through the next epoch too."""

import torch
import torch.nn.functional as F
from torch import nn, optim

torch.manual_seed(3)
net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
optimizer = optim.AdamW(net.parameters(), lr=1e-3)
train = [(torch.randn(8, 1, 8, 8), torch.randint(0, 4, (8,))) for _ in range(6)]
test = [(torch.randn(8, 1, 8, 8), torch.randint(0, 4, (8,))) for _ in range(10)]
for epoch in range(3):
    net.train()
    for images, labels in train:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
    net.eval()
    outputs, targets = [], []
    for images, labels in test:
        outputs.append(net(images))  # expect: graph-retention
        targets.append(labels)
    outputs = torch.cat(outputs)
    accuracy = (outputs.argmax(1) == torch.cat(targets)).float().mean()
    print(epoch, accuracy.item())
