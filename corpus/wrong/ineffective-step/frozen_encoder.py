"""The optimizer is given the frozen encoder, and the head is trained by nothing."""

import torch
from torch import nn


class Trainer:
    def __init__(self, model, lr):
        self.model = model
        self.optimizer = torch.optim.Adam(model.encoder.parameters(), lr=lr)  # expect: ineffective-step

    def fit(self, batches):
        for x, y in batches:
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(x), y)
            loss.backward()
            self.optimizer.step()
        return loss.item()


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 32), nn.ReLU())
        self.head = nn.Linear(32, 4)
        self.encoder.requires_grad_(False)

    def forward(self, x):
        return self.head(self.encoder(x))


torch.manual_seed(0)
batches = [(torch.randn(8, 8), torch.randint(4, (8,))) for _ in range(15)]
print(Trainer(Classifier(), 1e-2).fit(batches))
