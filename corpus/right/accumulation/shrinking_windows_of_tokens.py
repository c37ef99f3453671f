"""Fewer micro-batches per window as training goes on, 4, then 2, then 1, and each loss is a sum divided by the tokens
of its own window."""

import torch
import torch.nn.functional as F
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 12)
        self.out = nn.Linear(12, 3)

    def forward(self, words):
        return self.out(self.embed(words))


def sentences(generator, count):
    for _ in range(count):
        words = torch.randint(20, (3, 7), generator=generator)
        tags = (words % 3).masked_fill(torch.rand(3, 7, generator=generator) < 0.3, -100)
        yield words, tags


def fit(epochs=2):
    torch.manual_seed(2)
    tagger = Tagger()
    adam = torch.optim.Adam(tagger.parameters(), lr=0.02)
    generator = torch.Generator().manual_seed(7)
    for epoch in range(epochs):
        stream = sentences(generator, 14)
        for size in (4, 4, 2, 2, 1, 1):
            window = [next(stream) for _ in range(size)]
            tokens = sum(int((tags >= 0).sum()) for _, tags in window)
            adam.zero_grad()
            for words, tags in window:
                logits = tagger(words).transpose(1, 2)
                (F.cross_entropy(logits, tags, reduction="sum") / tokens).backward()
            adam.step()
        print(epoch, tokens)


fit()
