"""Looks like unscaling in the wrong place: scaled gradients add up over the window and are unscaled once,
before the clip; update() comes once a window too."""

from contextlib import nullcontext

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class AmpTrainer:
    def __init__(self, model, loader, accum=3, max_norm=1.0, amp=True):
        self.model, self.loader, self.accum, self.max_norm = model, loader, accum, max_norm
        self.ctx = torch.autocast("cpu", dtype=torch.bfloat16) if amp else nullcontext()
        self.opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
        self.sched = torch.optim.lr_scheduler.LinearLR(self.opt, 1.0, 0.1, total_iters=8)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0, enabled=amp)

    def backward(self, x, y, n):
        with self.ctx:
            loss = nn.functional.cross_entropy(self.model(x), y)
        self.scaler.scale(loss / n).backward()
        return loss.item()

    def optimizer_step(self):
        self.scaler.unscale_(self.opt)
        nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        scale = self.scaler.get_scale()
        self.scaler.step(self.opt)
        self.scaler.update()
        if self.scaler.get_scale() >= scale:
            self.sched.step()
        self.opt.zero_grad(set_to_none=True)

    def epoch(self):
        total, n_batches = 0.0, len(self.loader)
        for i, (x, y) in enumerate(self.loader):
            left = n_batches - i // self.accum * self.accum
            total += self.backward(x, y, min(self.accum, left))
            if (i + 1) % self.accum == 0 or i + 1 == n_batches:
                self.optimizer_step()
        return total / n_batches


def main():
    torch.manual_seed(2)
    x = torch.randn(176, 12)
    y = (x[:, :6] * x[:, 6:]).sum(1).gt(0).long()
    loader = DataLoader(TensorDataset(x, y), 16, shuffle=True, drop_last=True)
    model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 2))
    trainer = AmpTrainer(model, loader)
    for n in range(2):
        print(f"epoch {n}: {trainer.epoch():.4f}")


main()
