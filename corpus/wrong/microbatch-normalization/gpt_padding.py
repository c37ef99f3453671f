"""Means over 32 and over 120 real tokens are given the same quarter of the update: the clipped gradients are
off by 55 %.
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

PAD = 0


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (
            z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(self.ln1(x)).chunk(3, dim=-1)
        )
        att = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(att.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, vocab=24, dim=32, ctx=33):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(ctx, dim)
        self.blocks = nn.Sequential(Block(dim, 4), Block(dim, 4))
        self.head = nn.Linear(dim, vocab)

    def forward(self, idx, targets):
        x = self.tok(idx) + self.pos(torch.arange(idx.size(1)))
        logits = self.head(self.blocks(x))
        logits, targets = logits.flatten(0, 1), targets.flatten()
        return F.cross_entropy(logits, targets, ignore_index=PAD)  # expect: microbatch-normalization


def documents(n):
    """Counting sequences, short and long, padded to the longest of their batch."""
    for i in range(n):
        length = 9 if i % 2 else 31
        start = torch.randint(1, 24, (4, 1))
        stride = 1 if i % 2 else 5
        yield (start + stride * torch.arange(length)) % 23 + 1


def collate(docs, width=32):
    return F.pad(docs, (0, width - docs.size(1)), value=PAD)


torch.manual_seed(1337)
model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
gradient_accumulation_steps = 4

for epoch in range(2):
    running = 0.0
    for it, docs in enumerate(documents(8)):
        batch = collate(docs)
        loss = model(batch[:, :-1], batch[:, 1:])
        (loss / gradient_accumulation_steps).backward()  # expect: microbatch-normalization
        running += loss.item() / gradient_accumulation_steps
        if (it + 1) % gradient_accumulation_steps == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    print(f"epoch {epoch} | loss {running / 2:.4f} | ppl {math.exp(running / 2):.2f}")
