"""A translator takes its loss over whole batches of sentences, padding included. Time is the first dimension."""

import random

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence

random.seed(5)
torch.manual_seed(5)
PAD, START, END, WORDS = 1, 0, 2, 16


def pair():
    words = [random.randrange(3, WORDS) for _ in range(random.choice([2, 3, 4, 9]))]
    return torch.tensor(words), torch.tensor([START, *reversed(words), END])


class Translator(nn.Module):
    def __init__(self, dim=20):
        super().__init__()
        self.source = nn.Embedding(WORDS, dim, padding_idx=PAD)
        self.target = nn.Embedding(WORDS, dim, padding_idx=PAD)
        self.encoder, self.decoder = nn.GRU(dim, dim), nn.GRU(dim, dim)
        self.out = nn.Linear(dim, WORDS)

    def forward(self, source, target):
        _, state = self.encoder(self.source(source))
        return self.out(self.decoder(self.target(target), state)[0])


pairs = [pair() for _ in range(96)]
model = Translator()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for epoch in range(2):
    for k in range(0, len(pairs), 12):
        source, target = (pad_sequence(each, padding_value=PAD) for each in zip(*pairs[k : k + 12]))
        scores = model(source, target[:-1])
        loss = criterion(scores.flatten(0, 1), target[1:].flatten())  # expect: loss-reduction
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
