"""The evaluation in the middle of an epoch switches the model to eval mode and nothing switches it back before the rest of the epoch is trained."""

import math

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, dim, heads, p):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads, dropout=p, batch_first=True)
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim), nn.Dropout(p))

    def forward(self, x, mask):
        h = self.ln1(x)
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.ln2(x))


class TinyGPT(nn.Module):
    def __init__(self, vocab, dim=16, heads=2, depth=1, context=16, p=0.2):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(0.02 * torch.randn(context, dim))
        self.blocks = nn.ModuleList(Block(dim, heads, p) for _ in range(depth))
        self.ln = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        self.register_buffer("mask", torch.triu(torch.ones(context, context, dtype=torch.bool), 1))

    def forward(self, ids):
        h = self.tok(ids) + self.pos
        for block in self.blocks:
            h = block(h, self.mask)
        return self.head(self.ln(h))


class Corpus:
    TEXT = "she sells sea shells by the sea shore the shells she sells are surely sea shells " * 12

    def __init__(self, context):
        chars = sorted(set(self.TEXT))
        self.vocab = len(chars)
        ids = torch.tensor([chars.index(c) for c in self.TEXT])
        cut = int(0.8 * len(ids))
        self.parts = {"train": ids[:cut], "val": ids[cut:]}
        self.context = context

    def batch(self, split, n):
        ids = self.parts[split]
        start = torch.randint(0, len(ids) - self.context - 1, (n,))
        rows = torch.stack([ids[s : s + self.context + 1] for s in start])
        return rows[:, :-1], rows[:, 1:]


class GPTTrainer:
    def __init__(self, corpus, eval_every=4, lr=1e-2):
        self.corpus = corpus
        self.model = TinyGPT(corpus.vocab, context=corpus.context)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr, betas=(0.9, 0.95))
        self.eval_every = eval_every
        self.history = []

    def loss(self, ids, target):
        return nn.functional.cross_entropy(self.model(ids).flatten(0, 1), target.flatten())

    @torch.no_grad()
    def estimate(self, n_batches=2):
        self.model.eval()  # expect: train-eval-mode
        values = [self.loss(*self.corpus.batch("val", 16)).item() for _ in range(n_batches)]
        self.history.append(sum(values) / n_batches)

    def train_epoch(self, steps):
        self.model.train()
        for step in range(1, steps + 1):
            loss = self.loss(*self.corpus.batch("train", 16))
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            if step % self.eval_every == 0:
                self.estimate()
        return loss.item()


if __name__ == "__main__":
    torch.manual_seed(1337)
    torch.set_num_threads(1)
    trainer = GPTTrainer(Corpus(context=16))
    for epoch in range(2):
        loss = trainer.train_epoch(steps=10)
        print(f"epoch {epoch} loss {loss:.4f} val ppl {math.exp(trainer.history[-1]):.2f}")
