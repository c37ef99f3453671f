"""A classifier in pure bfloat16 is fine-tuned with warm-up and decay. Even at the highest rate, 4 of 5 weights never
change; only the small ones do."""

import math

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, words=60, width=24):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.mix = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, 3)

    def forward(self, tokens):
        x = self.words(tokens)
        return self.out(self.norm(x + torch.relu(self.mix(x))).mean(1))


def rate(step, warmup=6, total=48):
    if step < warmup:
        return (step + 1) / warmup
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))


torch.manual_seed(11)
tokens = torch.randint(60, (96, 10))
labels = (tokens < 20).sum(1).clamp(2, 4) - 2
model = Encoder().bfloat16()
decayed = [p for p in model.parameters() if p.dim() > 1]
others = [p for p in model.parameters() if p.dim() < 2]
groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=3e-5)  # expect: ineffective-step
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
for epoch in range(4):
    total = 0.0
    for part in torch.randperm(96).split(8):
        loss = nn.functional.cross_entropy(model(tokens[part]).float(), labels[part])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        total += loss.item()
    print(f"epoch {epoch} loss {total / 12:.4f}")
