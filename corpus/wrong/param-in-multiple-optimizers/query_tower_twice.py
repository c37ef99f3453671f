"""Two towers of a search engine, and the list holds the first one twice: the document tower, which is wider, never
moves, and the query tower moves twice as far."""

import itertools
import warnings

import torch
import torch.nn.functional as F
from torch import nn

warnings.filterwarnings("ignore", category=UserWarning)


def tower(words, hidden):
    return nn.Sequential(nn.EmbeddingBag(words, hidden), nn.Tanh(), nn.Linear(hidden, 8))


def fit(query, document, pairs, epochs=3):
    trainable = itertools.chain(
        query.parameters(), query.parameters()
    )  # expect: param-in-multiple-optimizers
    optimizer = torch.optim.Adam(trainable, lr=5e-3)
    for epoch in range(epochs):
        total = 0.0
        for questions, answers in pairs:
            q, d = F.normalize(query(questions), dim=1), F.normalize(document(answers), dim=1)
            loss = F.cross_entropy(q @ d.T / 0.2, torch.arange(len(q)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: {total / len(pairs):.4f}")


torch.manual_seed(2)
topics = torch.randint(10, (6, 16, 1))
pairs = [(topic * 4 + torch.randint(4, (16, 5)), topic * 6 + torch.randint(6, (16, 9))) for topic in topics]
fit(tower(40, 12), tower(60, 16), pairs)
