"""Each sentence is encoded twice with other dropout masks, and the two are each other's positives: no target, no
label, and the same batch goes through the model twice."""

import torch
import torch.nn.functional as F
from torch import nn


class SentenceEncoder(nn.Module):
    def __init__(self, words=50, width=24):
        super().__init__()
        self.words = nn.Embedding(words, width, padding_idx=0)
        self.body = nn.Sequential(nn.Dropout(0.1), nn.Linear(width, width), nn.Tanh())

    def forward(self, ids):
        mask = (ids != 0).unsqueeze(-1)
        mean = (self.words(ids) * mask).sum(1) / mask.sum(1).clamp(min=1)
        return self.body(mean)


def batches(count, size=16):
    for _ in range(count):
        ids = torch.randint(1, 50, (size, 9))
        ids[torch.arange(9) >= torch.randint(3, 10, (size, 1))] = 0
        yield ids


torch.manual_seed(0)
encoder = SentenceEncoder()
optimizer = torch.optim.AdamW(encoder.parameters(), lr=3e-3)
encoder.train()
for step, ids in enumerate(batches(8)):
    first, second = encoder(ids), encoder(ids)
    similarity = F.cosine_similarity(first.unsqueeze(1), second.unsqueeze(0), dim=-1) / 0.05
    loss = F.cross_entropy(similarity, torch.arange(len(ids)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"step {step} loss {loss.item():.3f}")
