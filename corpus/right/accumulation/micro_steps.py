"""Looks as if the scheduler were forgotten and a batch were thrown away: the rate is written into the
groups by hand, and the next batch is fetched while the current one is being worked on."""

import math

import torch
import torch.nn as nn
from torch.nn import functional as F

# -----------------------------------------------------------------------------
batch_size = 6
block_size = 16
gradient_accumulation_steps = 4
learning_rate = 1e-3
min_lr = 1e-4
warmup_iters = 2
max_iters = 8
grad_clip = 1.0
# -----------------------------------------------------------------------------
torch.manual_seed(1337)
text = "the quick brown fox jumps over the lazy dog. " * 40
chars = sorted(set(text))
data = torch.tensor([chars.index(c) for c in text])


def get_batch():
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([data[i : i + block_size] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + block_size] for i in ix])
    return x, y


class CharModel(nn.Module):
    def __init__(self, n_embd=32):
        super().__init__()
        self.wte = nn.Embedding(len(chars), n_embd)
        self.mix = nn.Conv1d(n_embd, n_embd, 4)
        self.ln = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, len(chars), bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets):
        x = self.wte(idx)
        x = x + torch.tanh(self.mix(F.pad(x.transpose(1, 2), (3, 0)))).transpose(1, 2)
        logits = self.lm_head(self.ln(x))
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = (it - warmup_iters) / (max_iters - warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


model = CharModel()
decay = [p for p in model.parameters() if p.dim() >= 2]
nodecay = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.1}, {"params": nodecay, "weight_decay": 0.0}], lr=learning_rate
)

X, Y = get_batch()
for iter_num in range(max_iters):
    for param_group in optimizer.param_groups:
        param_group["lr"] = get_lr(iter_num)
    for micro_step in range(gradient_accumulation_steps):
        logits, loss = model(X, Y)
        loss = loss / gradient_accumulation_steps
        X, Y = get_batch()
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if iter_num % 4 == 0:
        print(f"iter {iter_num}: loss {loss.item() * gradient_accumulation_steps:.4f}")
