"""The term for the prototypes detaches the features; the term for the features forgets the prototypes."""

import torch
from torch import nn

torch.manual_seed(3)
extractor = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5))
prototypes = nn.Parameter(torch.randn(4, 5))
classify = nn.Linear(5, 4)
sgd = torch.optim.SGD([*extractor.parameters(), prototypes, *classify.parameters()], lr=0.05)
x, y = torch.randn(240, 8), torch.randint(0, 4, (240,))
one_hot = torch.eye(4)[y]
for epoch in range(3):
    for inputs, labels, rows in zip(x.split(24), y.split(24), one_hot.split(24), strict=True):
        features = extractor(inputs)
        own = rows @ prototypes
        to_features = (own - features.detach()).square().sum(1).mean()
        to_prototypes = (features - own).square().sum(1).mean()  # expect: attached-target
        loss = nn.functional.cross_entropy(classify(features), labels) + to_features + 0.01 * to_prototypes
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
