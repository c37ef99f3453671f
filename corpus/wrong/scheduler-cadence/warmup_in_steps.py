"""The warm-up is counted in optimizer steps but the scheduler is stepped once per epoch, so training never leaves the first fraction of the warm-up."""

from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Settings:
    vocab: int = 20
    dim: int = 16
    heads: int = 4
    length: int = 8
    batch: int = 16
    epochs: int = 3
    peak_lr: float = 5e-3
    warmup_steps: int = 6
    seed: int = 4


class CopyModel(nn.Module):
    """Predicts the input sequence reversed."""

    def __init__(self, s: Settings):
        super().__init__()
        self.tok = nn.Embedding(s.vocab, s.dim)
        self.pos = nn.Parameter(0.02 * torch.randn(s.length, s.dim))
        self.attn = nn.MultiheadAttention(s.dim, s.heads, batch_first=True)
        self.norm1 = nn.LayerNorm(s.dim)
        self.ff = nn.Sequential(nn.Linear(s.dim, 32), nn.GELU(), nn.Linear(32, s.dim))
        self.norm2 = nn.LayerNorm(s.dim)
        self.head = nn.Linear(s.dim, s.vocab)

    def forward(self, ids):
        h = self.tok(ids) + self.pos
        n = self.norm1(h)
        h = h + self.attn(n, n, n, need_weights=False)[0]
        h = h + self.ff(self.norm2(h))
        return self.head(h)


class Trainer:
    def __init__(self, settings):
        self.s = settings
        torch.manual_seed(settings.seed)
        self.data = torch.randint(0, settings.vocab, (192, settings.length))
        self.model = CopyModel(settings)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=settings.peak_lr)
        self.total_steps = settings.epochs * (len(self.data) // settings.batch)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.lr_factor)

    def lr_factor(self, step):
        """Linear warm-up followed by a linear decay, both in optimizer steps."""
        w = self.s.warmup_steps
        if step < w:
            return (step + 1) / w
        return max(0.05, (self.total_steps - step) / (self.total_steps - w))

    def train_step(self, ids):
        self.optimizer.zero_grad(set_to_none=True)
        logits = self.model(ids)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids.flip(1).flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()

    def train_epoch(self):
        self.model.train()
        order = torch.randperm(len(self.data))
        losses = [self.train_step(self.data[idx]) for idx in order.split(self.s.batch)]
        return sum(losses) / len(losses)

    def fit(self):
        for epoch in range(self.s.epochs):
            loss = self.train_epoch()
            self.scheduler.step()  # expect: scheduler-cadence
            lr = self.optimizer.param_groups[0]["lr"]
            print(f"epoch {epoch} loss {loss:.4f} lr {lr:.2e}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    Trainer(Settings()).fit()
