"""Gradients are clipped, cleared, and then stepped with; the carried state, a leaf of its own, hides it."""

import torch
from torch import nn

torch.manual_seed(0)
embedding, rnn, out = nn.Embedding(20, 16), nn.GRU(16, 16, batch_first=True), nn.Linear(16, 20)
parameters = [*embedding.parameters(), *rnn.parameters(), *out.parameters()]
optimizer = torch.optim.Adam(parameters, 1e-3)
hidden = torch.zeros(1, 4, 16)
for step in range(10):
    tokens = torch.randint(20, (4, 9))
    y, hidden = rnn(embedding(tokens[:, :-1]), hidden.data.requires_grad_())
    loss = nn.functional.cross_entropy(out(y).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.zero_grad()  # expect: zero-grad-misplaced
    optimizer.step()
print(loss.item())
