"""The learned positions are built but never added to the token embeddings, so they get no gradient and the encoder is
blind to word order."""

from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class Config:
    vocab: int = 12
    length: int = 6
    dim: int = 24
    heads: int = 4
    lr: float = 3e-3
    epochs: int = 3
    batch: int = 32


class Encoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tok_emb = nn.Embedding(cfg.vocab, cfg.dim)
        self.pos_emb = nn.Parameter(0.02 * torch.randn(1, cfg.length, cfg.dim))  # expect: unreached-parameter
        layer = nn.TransformerEncoderLayer(cfg.dim, cfg.heads, 2 * cfg.dim, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.head = nn.Linear(cfg.dim, 2)

    def forward(self, ids):
        h = self.tok_emb(ids)  # expect: unreached-parameter
        h = self.encoder(h)
        return self.head(h.mean(dim=1))


def main(cfg):
    torch.manual_seed(15)
    ids = torch.randint(0, cfg.vocab, (320, cfg.length))
    first_is_smaller = (ids[:, 0] < ids[:, -1]).long()
    model = Encoder(cfg)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    lossf = nn.CrossEntropyLoss()
    for epoch in range(cfg.epochs):
        acc = 0
        for sel in torch.randperm(320).split(cfg.batch):
            logits = model(ids[sel])
            loss = lossf(logits, first_is_smaller[sel])
            opt.zero_grad()
            loss.backward()
            opt.step()
            acc += (logits.argmax(1) == first_is_smaller[sel]).sum().item()
        print(f"epoch {epoch} acc {acc / 320:.3f}")


if __name__ == "__main__":
    main(Config())
