"""Looks like a parameter used and listed twice: the embedding is also the output layer, and parameters()
names it once."""

import math

import torch
from torch import nn


class Seq(nn.Module):
    def __init__(self, vocab, dim, nhead=4, tie=True):
        super().__init__()
        self.scale = math.sqrt(dim)
        self.src = nn.Embedding(vocab, dim)
        self.tgt = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(torch.randn(1, 16, dim) * 0.02)
        self.transformer = nn.Transformer(dim, nhead, 1, 1, 64, dropout=0.0, batch_first=True)
        self.generator = nn.Linear(dim, vocab, bias=False)
        if tie:
            self.tgt.weight = self.src.weight
            self.generator.weight = self.src.weight

    def forward(self, src, tgt):
        mask = nn.Transformer.generate_square_subsequent_mask(tgt.shape[1])
        s = self.src(src) * self.scale + self.pos[:, : src.shape[1]]
        t = self.tgt(tgt) * self.scale + self.pos[:, : tgt.shape[1]]
        return self.generator(self.transformer(s, t, tgt_mask=mask))


BOS, VOCAB = 0, 14
torch.manual_seed(17)
source = torch.randint(1, VOCAB, (60, 7))
target = source.flip(1)
decoder_in = torch.cat([torch.full((60, 1), BOS), target[:, :-1]], 1)

model = Seq(VOCAB, 24)
nn.init.normal_(model.src.weight, std=24**-0.5)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.98), eps=1e-9)
loss_fn = nn.CrossEntropyLoss(label_smoothing=0.1)
for epoch in range(2):
    for rows in torch.randperm(60).split(20):
        logits = model(source[rows], decoder_in[rows])
        loss = loss_fn(logits.transpose(1, 2), target[rows])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    print(f"epoch {epoch}: {loss.item():.4f}")
