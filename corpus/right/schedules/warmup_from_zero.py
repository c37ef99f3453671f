"""Looks like a step without effect: the warm-up begins at a rate of exactly zero, so the first step only
fills Adam's averages."""

import argparse

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR


def get_linear_schedule_with_warmup(optimizer, num_warmup_steps, num_training_steps):
    def lr_lambda(current_step):
        if current_step < num_warmup_steps:
            return float(current_step) / float(max(1, num_warmup_steps))
        left = float(num_training_steps - current_step)
        return max(0.0, left / float(max(1, num_training_steps - num_warmup_steps)))

    return LambdaLR(optimizer, lr_lambda)


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(26, 24)
        self.attn = nn.MultiheadAttention(24, 4, batch_first=True)
        self.norm = nn.LayerNorm(24)
        self.out = nn.Linear(24, 1)

    def forward(self, ids):
        h = self.embed(ids)
        h = self.norm(h + self.attn(h, h, h, need_weights=False)[0])
        return self.out(h.amax(1)).squeeze(-1)


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--train-batch-size", type=int, default=16)
    parser.add_argument("--warmup-proportion", type=float, default=0.25)
    parser.add_argument("--learning-rate", type=float, default=4e-3)
    args = parser.parse_args(argv)
    torch.manual_seed(7)
    ids = torch.randint(26, (96, 9))
    score = (ids == 4).float().sum(1) - (ids > 20).float().mean(1)
    model = Scorer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    total = args.epochs * (96 // args.train_batch_size)
    scheduler = get_linear_schedule_with_warmup(optimizer, int(args.warmup_proportion * total), total)
    for epoch in range(args.epochs):
        for i in torch.randperm(96).split(args.train_batch_size):
            loss = nn.functional.mse_loss(model(ids[i]), score[i])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()  # Update learning rate schedule
            model.zero_grad()
        print(f"epoch {epoch} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.6f}")


main()
