"""The quality head learns to predict how good the class scores are; its target is computed from these scores with
gradient, so that the head also makes the classifier as good as the head expects it to be."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class WithQuality(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 32), nn.ReLU())
        self.classes = nn.Linear(32, 10)
        self.quality = nn.Sequential(nn.Linear(32, 1), nn.Sigmoid())

    def forward(self, x):
        features = self.body(x)
        return self.classes(features), self.quality(features).squeeze(1)


class Trainer:
    def __init__(self, model, lr):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.cross_entropy, self.bce = nn.CrossEntropyLoss(), nn.BCELoss()

    def step(self, x, y):
        logits, quality = self.model(x)
        right = logits.softmax(1).gather(1, y[:, None]).squeeze(1)
        loss = self.cross_entropy(logits, y)
        loss = loss + 0.5 * self.bce(quality, right)  # expect: attached-target
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


torch.manual_seed(0)
digits = load_digits()
data = TensorDataset(
    torch.tensor(digits.data[:384] / 16, dtype=torch.float32), torch.tensor(digits.target[:384])
)
trainer = Trainer(WithQuality(), 2e-3)
for epoch in range(2):
    losses = [trainer.step(x, y) for x, y in DataLoader(data, batch_size=64, shuffle=True)]
    print(f"epoch {epoch}: {sum(losses) / len(losses):.3f}")
