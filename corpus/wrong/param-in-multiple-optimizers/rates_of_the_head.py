"""A text classifier whose head is to learn faster: its optimizer clears gradients, but the other one steps."""

import torch
from torch import nn

torch.manual_seed(0)
encoder, head = nn.EmbeddingBag(30, 12), nn.Linear(12, 3)
head_optimizer = torch.optim.SGD(head.parameters(), lr=0.5, momentum=0.9)
optimizer = torch.optim.Adam(
    [*encoder.parameters(), *head.parameters()], lr=1e-3
)  # expect: param-in-multiple-optimizers
for _ in range(12):
    words, topics = torch.randint(30, (16, 7)), torch.randint(3, (16,))
    loss = nn.functional.cross_entropy(head(encoder(words)), topics)
    optimizer.zero_grad()
    head_optimizer.zero_grad()
    loss.backward()
    optimizer.step()
