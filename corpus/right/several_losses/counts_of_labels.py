"""Counts in the loss that are right: of labels, which are data; of the experts chosen, weighed by probabilities; and
a comparison that only chooses what a term is taken over."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    x = torch.randn(48, 6)
    y = x[:, :3].argmax(1)
    logits = model(x)
    probabilities = logits.softmax(1)
    chosen = logits.topk(1).indices.squeeze(1)
    load = F.one_hot(chosen, 3).float().mean(0)
    balance = 3 * (load * probabilities.mean(0)).sum()
    share = F.one_hot(y, 3).float().mean(0)
    uncertain = (probabilities.max(1).values < 0.6).float()
    entropy = -(uncertain * (probabilities * probabilities.log()).sum(1)).mean()
    loss = F.cross_entropy(logits, y) + 0.1 * balance + 0.1 * entropy + 0.01 * share.square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")
