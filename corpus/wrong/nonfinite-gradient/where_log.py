"""The entropy of the attention skips masked places with torch.where, but log(0) is still differentiated there: infinity
times zero is NaN, and it reaches the scorer and the embedding."""

import argparse

import torch
import torch.nn as nn


class AttentivePool(nn.Module):
    def __init__(self, vocab, d):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.query = nn.Linear(d, 1)
        self.out = nn.Linear(d, 2)

    def forward(self, ids):
        h = self.emb(ids)
        score = self.query(torch.tanh(h)).squeeze(-1)
        attn = score.masked_fill(ids == 0, float("-inf")).softmax(-1)
        return self.out((attn.unsqueeze(-1) * h).sum(1)), attn


def attention_entropy(attn):
    plogp = torch.where(
        attn > 0, attn * torch.log(attn), torch.zeros_like(attn)
    )  # expect: nonfinite-gradient
    return -plogp.sum(-1).mean()


def documents(n, vocab, length):
    ids = torch.randint(1, vocab, (n, length))
    keep = torch.randint(3, length + 1, (n, 1))
    ids = torch.where(torch.arange(length) < keep, ids, 0)
    return ids, (ids == 3).any(1).long()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--lr", type=float, default=0.01)
    ap.add_argument("--entropy-weight", type=float, default=0.05)
    opt = ap.parse_args()
    torch.manual_seed(0)
    ids, label = documents(240, 12, 9)
    net = AttentivePool(12, 16)
    optim = torch.optim.Adam(net.parameters(), lr=opt.lr)
    for epoch in range(opt.epochs):
        for sel in torch.randperm(len(ids)).chunk(10):
            optim.zero_grad()
            logits, attn = net(ids[sel])
            loss = nn.functional.cross_entropy(logits, label[sel]) + opt.entropy_weight * attention_entropy(
                attn
            )
            loss.backward()
            optim.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")


main()
