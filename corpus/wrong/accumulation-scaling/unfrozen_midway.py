"""Two micro-batches to a step, and neither loss is divided. The encoder is unfrozen after the first epoch,
so that later windows reach more parameters."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(17)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 16), nn.Tanh())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.encoder(x))


model = Classifier()
model.encoder.requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
x = torch.randn(128, 6)
y = x[:, :3].argmax(1)
for epoch in range(3):
    if epoch == 1:
        model.encoder.requires_grad_(True)
    for step, rows in enumerate(torch.randperm(128).split(16)):
        loss = F.cross_entropy(model(x[rows]), y[rows])
        loss.backward()  # expect: accumulation-scaling
        if (step + 1) % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
    print(f"epoch {epoch} loss {loss.item():.4f}")
