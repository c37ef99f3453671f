"""Padding is ignored in the targets, but the sum is divided by the tokens of the whole attention mask."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
LETTERS, PAD = 9, -100


class Speaker(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(LETTERS, 16)
        self.rnn = nn.GRU(16, 16, batch_first=True)
        self.out = nn.Linear(16, LETTERS)

    def forward(self, ids):
        return self.out(self.rnn(self.embed(ids))[0])


model = Speaker()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    ids = torch.randint(LETTERS, (8, 12))
    attention_mask = (torch.arange(12) < torch.randint(3, 12, (8, 1))).long()
    labels = ids.masked_fill(attention_mask == 0, PAD)
    logits = model(ids)[:, :-1].reshape(-1, LETTERS)
    total = F.cross_entropy(logits, labels[:, 1:].reshape(-1), reduction="sum")
    opt.zero_grad()
    (total / attention_mask.sum()).backward()  # expect: loss-reduction
    opt.step()
