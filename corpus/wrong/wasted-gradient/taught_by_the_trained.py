"""The first network teaches the second. No step trains it any more, but each loss computes its gradients and adds
them up."""

import torch
import torch.nn.functional as F
from torch import nn


class Reader(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.words = nn.Embedding(40, hidden)
        self.classes = nn.Linear(hidden, 3)

    def forward(self, tokens):
        return self.classes(self.words(tokens).mean(1))


def fit(reader, texts, labels, of_another=None, rounds=6):
    adam = torch.optim.Adam(reader.parameters(), lr=1e-2)
    for part in torch.randperm(len(texts)).split(len(texts) // rounds):
        found = reader(texts[part])
        error = F.cross_entropy(found, labels[part])
        if of_another is not None:
            soft = F.softmax(of_another(texts[part]) / 2, dim=-1)  # expect: wasted-gradient
            error = error + F.kl_div(F.log_softmax(found / 2, dim=-1), soft, reduction="batchmean")
        adam.zero_grad()
        error.backward()
        adam.step()
    return error.item()


torch.manual_seed(9)
texts = torch.randint(40, (120, 7))
labels = texts[:, 0] % 3
large, small = Reader(64), Reader(16)
print(f"teacher {fit(large, texts, labels):.3f}")
print(f"student {fit(small, texts, labels, of_another=large):.3f}")
