"""Probabilities of one layer are given to nll_loss by two losses, of labelled data and of data with a guessed label."""

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self, words=40, tags=5):
        super().__init__()
        self.body = nn.Sequential(nn.Embedding(words, 16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, tags))
        self.normalize = nn.Softmax(dim=-1)  # expect: loss-input

    def forward(self, x):
        return self.normalize(self.body(x))


torch.manual_seed(0)
tagger, criterion = Tagger(), nn.NLLLoss()
optimizer = torch.optim.Adam(tagger.parameters(), lr=5e-3)
tag_of = torch.randint(5, (40,))
for step in range(12):
    words, others = torch.randint(40, (64,)), torch.randint(40, (64,))
    optimizer.zero_grad()
    known = criterion(tagger(words), tag_of[words])
    known.backward()
    guesses = tagger(others)
    guessed = 0.1 * criterion(guesses, guesses.argmax(1))
    guessed.backward()
    optimizer.step()
print(f"{known.item():.3f} {guessed.item():.3f}")
