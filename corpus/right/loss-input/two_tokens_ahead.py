"""Language models whose targets are not the next token of their input: one skips the first token, one has two heads."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
LETTERS = 9


class Speaker(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.embed = nn.Embedding(LETTERS, 16)
        self.rnn = nn.GRU(16, 16, batch_first=True)
        self.heads = nn.ModuleList(nn.Linear(16, LETTERS) for _ in range(heads))

    def forward(self, ids):
        h = self.rnn(self.embed(ids))[0]
        return [head(h) for head in self.heads]


skips, looks_ahead = Speaker(1), Speaker(2)
opt = torch.optim.Adam([*skips.parameters(), *looks_ahead.parameters()], lr=1e-2)
for _ in range(12):
    ids = torch.randint(LETTERS, (8, 12))
    (logits,) = skips(ids)  # the first token is the speaker's name, and the second follows from it
    named = F.cross_entropy(logits[:, 1:-1].transpose(1, 2), ids[:, 2:])
    hidden = skips.rnn(skips.embed(ids))[0][:, 1:-1]
    again = F.cross_entropy(skips.heads[0](hidden).transpose(1, 2), ids[:, 2:])
    opt.zero_grad()
    named.backward()
    again.backward()
    several = [
        F.cross_entropy(logits[:, : -1 - k].transpose(1, 2), ids[:, 1 + k :])
        for k, logits in enumerate(looks_ahead(ids))
    ]
    sum(several).backward()
    opt.step()
