"""Warm-up and decay are laid out over the updates and advanced at each micro-batch, four to an update: the
rate is 0 for the last 9 of the 12 updates.
"""

from functools import partial

import torch
import torch.nn as nn
from torch.optim.lr_scheduler import LambdaLR


def linear_with_warmup(step, *, warmup_steps, total_steps):
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    return max(0.0, (total_steps - step) / max(1, total_steps - warmup_steps))


class LM(nn.Module):
    def __init__(self, vocab=16, dim=32, ctx=12):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.position = nn.Parameter(torch.randn(ctx, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.lm_head = nn.Linear(dim, vocab, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(ctx))

    def forward(self, ids):
        hidden = self.encoder(self.embed(ids) + self.position, mask=self.mask, is_causal=True)
        return self.lm_head(hidden)


def micro_batches(count, size, ctx=12):
    for _ in range(count):
        start = torch.randint(16, (size, 1))
        ids = (start + 3 * torch.arange(ctx + 1)) % 16
        yield ids[:, :-1], ids[:, 1:]


def main(epochs=2, accumulate=4, per_epoch=24):
    torch.manual_seed(5)
    model = LM()
    num_updates = epochs * per_epoch // accumulate
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    scheduler = LambdaLR(optimizer, partial(linear_with_warmup, warmup_steps=2, total_steps=num_updates))
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        shown = 0.0
        for step, (ids, targets) in enumerate(micro_batches(per_epoch, 4)):
            loss = loss_fn(model(ids).flatten(0, 1), targets.flatten()) / accumulate
            loss.backward()
            shown += loss.item() * accumulate
            if (step + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
            scheduler.step()  # expect: scheduler-cadence
        print(f"epoch {epoch} loss {shown / per_epoch:.4f}")


if __name__ == "__main__":
    main()
