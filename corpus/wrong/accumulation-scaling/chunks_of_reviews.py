"""Five means are added up without a division: the gradient is five times that of the batch."""

import torch
import torch.nn.functional as F
from torch import nn


class Reviews(nn.Module):
    def __init__(self, words=60, size=16):
        super().__init__()
        self.embed = nn.EmbeddingBag(words, size)
        self.head = nn.Linear(size, 3)

    def forward(self, tokens):
        return self.head(self.embed(tokens))


def train_step(model, optimizer, tokens, labels, chunks=5):
    pairs = list(zip(tokens.chunk(chunks), labels.chunk(chunks)))
    first_tokens, first_labels = pairs[0]
    loss = F.cross_entropy(model(first_tokens), first_labels)
    loss.backward()  # expect: accumulation-scaling
    for some_tokens, some_labels in pairs[1:]:
        loss = F.cross_entropy(model(some_tokens), some_labels)
        loss.backward()  # expect: accumulation-scaling
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


torch.manual_seed(12)
model = Reviews()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
for step in range(8):
    tokens = torch.randint(0, 60, (40, 7))
    labels = tokens.float().mean(1).div(20).long().clamp(0, 2)
    loss = train_step(model, optimizer, tokens, labels)
print(f"loss {loss:.3f}")
