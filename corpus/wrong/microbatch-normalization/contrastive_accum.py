"""InfoNCE over micro-batches of 8, accumulated to 32: each image is told from 7 captions, not from 31. The accumulated
gradient is not that of the batch of 32, and no division makes it so."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
        self.text = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 8))
        self.log_scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, images, texts):
        images, texts = F.normalize(self.image(images), dim=1), F.normalize(self.text(texts), dim=1)
        return self.log_scale.exp() * images @ texts.T


def contrastive(logits):
    positives = torch.arange(len(logits))
    to_texts = F.cross_entropy(logits, positives)  # expect: microbatch-normalization
    return (to_texts + F.cross_entropy(logits.T, positives)) / 2


accumulate = 4
model = TwoTowers()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
shared = torch.randn(256, 4)
images = torch.cat([shared, torch.randn(256, 12)], dim=1)
texts = torch.cat([shared, torch.randn(256, 8)], dim=1)
for epoch in range(2):
    order = torch.randperm(256)
    for step, part in enumerate(order.split(8)):
        loss = contrastive(model(images[part], texts[part])) / accumulate
        loss.backward()
        if (step + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
    print(epoch, f"{loss.item() * accumulate:.4f}")
