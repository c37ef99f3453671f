"""Looks like accumulation without a flush and uncleared gradients: the body is stepped after every batch,
the slow embeddings after every fourth, on the mean of what has come together since."""

import torch
from torch import nn

SLOW_EVERY = 4
torch.manual_seed(64)

embed = nn.EmbeddingBag(50, 16, mode="mean")
body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
fast = torch.optim.Adam(body.parameters(), lr=3e-3)
slow = torch.optim.SGD(embed.parameters(), lr=0.5)

docs = torch.randint(50, (192, 12))
labels = ((docs < 10).sum(1) > 2).long()

step = 0
for epoch in range(2):
    correct = 0
    for rows in torch.randperm(192).split(16):
        logits = body(embed(docs[rows]))
        loss = nn.functional.cross_entropy(logits, labels[rows])

        fast.zero_grad()
        loss.backward()
        fast.step()

        step += 1
        if step % SLOW_EVERY == 0:
            for p in embed.parameters():
                p.grad /= SLOW_EVERY
            slow.step()
            slow.zero_grad()
        correct += (logits.argmax(1) == labels[rows]).sum().item()
    print(f"epoch {epoch}: accuracy {correct / 192:.3f}")
