"""A masked mean per token in each micro-batch, as many tokens in each, with as many rows as there are micro-batches."""

import torch
from torch import nn

torch.manual_seed(8)
WINDOW = 4
tagger = nn.Sequential(nn.Embedding(12, 8), nn.Linear(8, 5))
optimizer = torch.optim.SGD(tagger.parameters(), lr=0.2)
per_token = nn.CrossEntropyLoss(reduction="none")
known = torch.zeros(4, 10)
known[:, :3] = 1  # only the first tokens have labels

for update in range(12):
    optimizer.zero_grad()
    for _ in range(WINDOW):
        words = torch.randint(12, (4, 10))
        losses = per_token(tagger(words).transpose(1, 2), words % 5) * known
        mean = losses.sum() / known.sum()
        (mean / WINDOW).backward()
    optimizer.step()
