"""A probe watches the encoder while its batch grows from one micro-batch to four. It reads the code
detached.
"""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(3)
encoder = nn.Sequential(nn.Linear(20, 32), nn.GELU(), nn.Linear(32, 12))
classifier = nn.Linear(12, 5)
probe = nn.Linear(12, 2)
optimizer = torch.optim.AdamW([*encoder.parameters(), *classifier.parameters()], lr=2e-3)
probe_optimizer = torch.optim.SGD(probe.parameters(), lr=0.1)

inputs = torch.randn(512, 20)
labels = (inputs[:, :5] + 0.3 * torch.randn(512, 5)).argmax(1)
batches = list(zip(inputs.split(16), labels.split(16)))

place = 0
for size in (1, 1, 2, 2, 4, 4, 4, 4, 4):
    optimizer.zero_grad()
    for x, y in batches[place : place + size]:
        code = encoder(x)
        loss = F.cross_entropy(classifier(code), y) / size
        loss.backward()
        probe_optimizer.zero_grad()
        probe_loss = F.cross_entropy(probe(code.detach()), y % 2)
        probe_loss.backward()
        probe_optimizer.step()
    optimizer.step()
    place += size
    print(f"window of {size}: loss {size * loss.item():.3f}  probe {probe_loss.item():.3f}")
