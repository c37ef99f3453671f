"""The MLP half of each block reads norm1 again, so the norm2 of both blocks never gets a gradient: 4 of 29
tensors are at rest, and the other gradients are off by 3 to 6%."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1337)
vocab_size, n_embd, n_head, block_size = 17, 32, 4, 12


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(n_embd)
        self.attn = nn.MultiheadAttention(n_embd, n_head, batch_first=True)
        self.norm2 = nn.LayerNorm(n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        mask = torch.triu(torch.full((x.size(1), x.size(1)), float("-inf")), diagonal=1)
        h = self.norm1(x)
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        x = x + self.mlp(self.norm1(x))  # expect: unreached-parameter
        return x


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        logits = self.lm_head(self.norm_f(self.blocks(x)))
        return logits, F.cross_entropy(logits.view(-1, vocab_size), targets.view(-1))


data = (torch.arange(600) ** 2 // 3) % vocab_size


def get_batch(batch_size=8):
    ix = torch.randint(len(data) - block_size - 1, (batch_size,))
    x = torch.stack([data[i : i + block_size] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + block_size] for i in ix])
    return x, y


model = LanguageModel()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for it in range(10):
    xb, yb = get_batch()
    logits, loss = model(xb, yb)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if it % 5 == 4:
        print(f"step {it}: loss {loss.item():.4f}")
