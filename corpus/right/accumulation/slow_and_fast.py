"""Two steps in one loop, one of them under a condition: the embedding accumulates over four batches, the rest does not."""

import torch
from torch import nn

torch.manual_seed(15)
every = 4
embedding, rest = nn.Embedding(30, 8), nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
slow = torch.optim.SGD(embedding.parameters(), lr=0.1)
fast = torch.optim.SGD(rest.parameters(), lr=0.1)
for i in range(24):
    words = torch.randint(0, 30, (32, 5))
    loss = nn.functional.cross_entropy(rest(embedding(words).mean(1)), words.sum(1) % 3)
    loss.backward()
    if (i + 1) % every == 0:
        embedding.weight.grad /= every
        slow.step()
        slow.zero_grad()
    fast.step()
    fast.zero_grad()
    if (i + 1) % 12 == 0:
        print(f"batch {i + 1} loss {loss.item():.3f}")
