"""Of each window's four micro-batches two have labels: the supervised term is divided by two, the consistency term
by four, and both are means over what they are taken of."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WINDOW, LABELLED = 4, 2

torch.manual_seed(3)
x = torch.randn(96, 5)
y = (x.sum(1) > 0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=6)

classifier = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 2))
optimizer = torch.optim.Adam(classifier.parameters(), lr=5e-3)

for epoch in range(2):
    for i, (inputs, labels) in enumerate(loader):
        clean = classifier(inputs)
        noisy = classifier(inputs + 0.05 * torch.randn_like(inputs))
        loss = F.mse_loss(noisy.softmax(1), clean.softmax(1).detach()) / WINDOW
        if i % WINDOW < LABELLED:
            loss = loss + F.cross_entropy(clean, labels) / LABELLED
        loss.backward()
        if (i + 1) % WINDOW == 0:
            optimizer.step()
            optimizer.zero_grad()
    print(f"epoch {epoch + 1}, last loss {loss.item():.4f}")
