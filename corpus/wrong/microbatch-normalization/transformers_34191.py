"""transformers #34191: each micro-batch is divided by its own tokens, and the window by the micro-batches."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
PAD, ACCUMULATE = 0, 4
model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 50))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
lengths = [3, 30, 8, 21]
for step in range(20):
    tokens = torch.randint(1, 50, (2, 32))
    tokens[:, lengths[step % 4] :] = PAD
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(
        logits.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=PAD
    )  # expect: microbatch-normalization
    (loss / ACCUMULATE).backward()  # expect: microbatch-normalization
    if step % ACCUMULATE == ACCUMULATE - 1:
        optimizer.step()
        optimizer.zero_grad()
