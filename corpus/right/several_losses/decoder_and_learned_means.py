"""The second argument of the error is trained by nothing else, and is meant to be: learned class means in the same
optimizer, which follow the features, while a classifier keeps these apart."""

import torch
from torch import nn

torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
classifier = nn.Linear(2, 3)
means = nn.Embedding(3, 2)
optimizer = torch.optim.SGD([*encoder.parameters(), *classifier.parameters(), *means.parameters()], lr=0.1)
x = torch.randn(60, 8)
y = x[:, :3].argmax(1)
for epoch in range(8):
    features = encoder(x)
    loss = nn.functional.cross_entropy(classifier(features), y)
    loss = loss + 0.05 * nn.functional.mse_loss(features, means(y))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
