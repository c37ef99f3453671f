"""The loss takes the softmax of the logits, and cross_entropy takes a softmax of that."""

import torch
import torch.nn.functional as F
from torch import nn


class Tagger(nn.Module):
    def __init__(self, words, tags, size=12):
        super().__init__()
        self.embed = nn.Embedding(words, size)
        self.rnn = nn.GRU(size, size, batch_first=True)
        self.head = nn.Linear(size, tags)

    def forward(self, tokens):
        return self.head(self.rnn(self.embed(tokens))[0])


def train(model, tokens, tags, steps=8):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(steps):
        logits = model(tokens)
        loss = F.cross_entropy(F.softmax(logits, dim=-1).flatten(0, 1), tags.flatten())  # expect: loss-input
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


torch.manual_seed(0)
tokens = torch.randint(0, 20, (16, 6))
print(train(Tagger(20, 4), tokens, tokens % 4))
