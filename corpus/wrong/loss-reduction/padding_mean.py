"""The masked token losses are averaged over all positions, padding included, so batches with much padding count for
less."""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(6)
torch.manual_seed(6)
PAD, VOCAB = 0, 18


def collate(seqs):
    length = max(len(s) for s in seqs)
    ids = torch.full((len(seqs), length), PAD)
    for row, s in zip(ids, seqs):
        row[: len(s)] = torch.tensor(s)
    return ids


def arithmetic_sequence():
    start, step = random.randint(1, 5), random.randint(1, 3)
    n = random.choice([3, 4, 5, 15, 16])
    return [(start + step * k) % (VOCAB - 1) + 1 for k in range(n)]


class Decoder(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim, padding_idx=PAD)
        self.gru = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, VOCAB)

    def forward(self, ids):
        return self.out(self.gru(self.emb(ids))[0])


def sequence_loss(logits, target):
    mask = (target != PAD).float()
    nll = F.cross_entropy(logits.transpose(1, 2), target, reduction="none")
    return (nll * mask).mean()  # expect: loss-reduction


data = torch.utils.data.DataLoader(
    [arithmetic_sequence() for _ in range(80)], batch_size=16, shuffle=True, collate_fn=collate
)
model = Decoder()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
for epoch in range(3):
    for ids in data:
        loss = sequence_loss(model(ids[:, :-1]), ids[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
