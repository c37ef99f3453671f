"""Targets equal an embedding's padding_idx, on purpose: it ends each sequence, is a tag of its own, is masked, or has
no weight."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(4)
PAD, WORDS, LENGTH = 0, 12, 10


class Reader(nn.Module):
    def __init__(self, dim=12):
        super().__init__()
        self.words = nn.Embedding(WORDS, dim, padding_idx=PAD)
        self.gru = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, WORDS)

    def forward(self, words):
        return self.out(self.gru(self.words(words))[0])


def batch():
    lengths = torch.randint(4, LENGTH + 1, (12, 1))
    words = (torch.randint(WORDS, (12, 1)) + torch.arange(LENGTH)) % (WORDS - 1) + 1
    return words.masked_fill(torch.arange(LENGTH) >= lengths, PAD)


def loss_of(model, words, how):
    inputs, targets = words[:, :-1], words[:, 1:]
    if how == "tags":
        targets = inputs % 3  # 0 is padding, and also a tag
    elif how == "grid":
        inputs = targets = torch.where(torch.rand(words.shape) < 0.5, words, PAD)
    scores, targets = model(inputs).flatten(0, 1), targets.flatten()
    if how == "masked":
        losses = F.cross_entropy(scores, targets, reduction="none")
        return losses[targets != PAD].mean()
    if how == "weights":
        return F.cross_entropy(scores, targets, weight=(torch.arange(WORDS) != PAD).float())
    return F.cross_entropy(scores, targets)


for how in ("end", "tags", "grid", "masked", "weights"):
    model = Reader()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(6):
        loss = loss_of(model, batch(), how)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(how, f"{loss.item():.4f}")
