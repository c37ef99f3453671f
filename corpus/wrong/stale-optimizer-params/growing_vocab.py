"""Growing the vocabulary puts a new Parameter into the embedding while the optimizer keeps the old one, so the embeddings stop learning after that."""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(16)
torch.manual_seed(16)
torch.set_num_threads(1)

STREAMS = [
    "the cat sat on the mat the dog sat on the rug the cat saw the dog".split(),
    "a robot sat on the roof the robot saw the cat and a bird saw the robot".split(),
    "the bird and the robot sat on a satellite and saw the moon and the dog".split(),
]
CONTEXT = 2


class Vocabulary:
    def __init__(self):
        self.index = {"<pad>": 0}

    def add(self, words):
        for w in words:
            self.index.setdefault(w, len(self.index))
        return len(self.index)

    def __call__(self, words):
        return [self.index[w] for w in words]


class CBOW(nn.Module):
    """Predicts a word from its neighbours with a shared in/out embedding."""

    def __init__(self, size, dim=12):
        super().__init__()
        self.embedding = nn.Embedding(size, dim)
        nn.init.normal_(self.embedding.weight, std=0.3)
        self.mix = nn.Linear(dim, dim)

    def resize(self, size):
        old = self.embedding.weight.data
        extra = 0.3 * torch.randn(size - len(old), old.size(1))
        self.embedding.weight = nn.Parameter(torch.cat([old, extra]))  # expect: stale-optimizer-params
        self.embedding.num_embeddings = size

    def forward(self, context):
        h = torch.tanh(self.mix(self.embedding(context).mean(1)))
        return F.linear(h, self.embedding.weight)


def windows(ids):
    padded = [0] * CONTEXT + ids + [0] * CONTEXT
    for i, centre in enumerate(ids):
        left, right = padded[i : i + CONTEXT], padded[i + CONTEXT + 1 : i + 2 * CONTEXT + 1]
        yield left + right, centre


vocab = Vocabulary()
model = CBOW(vocab.add(STREAMS[0]))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)

for stage, words in enumerate(STREAMS):
    size = vocab.add(words)
    if size > model.embedding.num_embeddings:
        model.resize(size)
    pairs = list(windows(vocab(words)))
    for epoch in range(3):
        random.shuffle(pairs)
        total = 0.0
        for k in range(0, len(pairs), 5):
            chunk = pairs[k : k + 5]
            context = torch.tensor([c for c, _ in chunk])
            centre = torch.tensor([t for _, t in chunk])
            model.zero_grad()
            loss = F.cross_entropy(model(context), centre)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(chunk)
    print(f"stage {stage}: vocabulary {size}, loss {total / len(pairs):.4f}")
