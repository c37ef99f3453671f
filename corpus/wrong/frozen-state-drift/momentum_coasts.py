"""The embedding is frozen after the first epoch, but clearing leaves zero gradients in place of none, so SGD goes on
moving it by its momentum."""

import random

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self, n_words, n_tags, dim=16):
        super().__init__()
        self.embedding = nn.Embedding(n_words, dim)
        self.rnn = nn.GRU(dim, dim, bidirectional=True, batch_first=True)
        self.tag = nn.Linear(2 * dim, n_tags)

    def forward(self, ids):
        return self.tag(self.rnn(self.embedding(ids))[0])


TEMPLATES = ["DT NN VB DT NN", "DT JJ NN VB", "NN VB DT JJ NN"]
LEXICON = {
    "DT": ["the", "a"],
    "NN": ["dog", "cat", "run", "light"],
    "VB": ["run", "sees", "light"],
    "JJ": ["light", "big"],
}
TAGS = list(LEXICON)
WORDS = sorted({w for ws in LEXICON.values() for w in ws})


def sentence():
    tags = random.choice(TEMPLATES).split()
    words = [random.choice(LEXICON[t]) for t in tags]
    return torch.tensor([[WORDS.index(w) for w in words]]), torch.tensor([[TAGS.index(t) for t in tags]])


random.seed(0)
torch.manual_seed(0)
corpus = [sentence() for _ in range(16)]
model = Tagger(len(WORDS), len(TAGS))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
loss_fn = nn.CrossEntropyLoss()

for epoch in range(3):
    if epoch == 1:
        model.embedding.weight.requires_grad_(False)  # expect: frozen-state-drift
    total = 0.0
    for words, tags in corpus:
        optimizer.zero_grad(set_to_none=False)  # expect: frozen-state-drift
        loss = loss_fn(model(words).transpose(1, 2), tags)
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch} loss {total / len(corpus):.4f}")
