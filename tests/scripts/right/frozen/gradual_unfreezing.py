"""Looks like frozen parameters that the optimizer never heard of: each stage unfreezes one more block and
adds it as a new group with its own, smaller rate."""

import torch
from torch import nn


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.Linear(i, 24), nn.LayerNorm(24), nn.ReLU()) for i in (10, 24, 24)]
        )
        self.head = nn.Linear(24, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class FineTuner:
    def __init__(self, model, lr=1e-2, decay=0.4):
        self.model, self.lr, self.decay = model, lr, decay
        for p in model.blocks.parameters():
            p.requires_grad = False
        self.optimizer = torch.optim.AdamW(model.head.parameters(), lr=lr, weight_decay=0.05)
        self.frozen = list(model.blocks)

    def unfreeze_next(self):
        if not self.frozen:
            return
        block = self.frozen.pop()
        self.lr *= self.decay
        for p in block.parameters():
            p.requires_grad = True
        self.optimizer.add_param_group({"params": block.parameters(), "lr": self.lr})

    def epoch(self, x, y):
        for xb, yb in zip(x.split(25), y.split(25)):
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(xb), yb, label_smoothing=0.1)
            loss.backward()
            self.optimizer.step()
        return loss.item()


if __name__ == "__main__":
    torch.manual_seed(77)
    x = torch.randn(100, 10)
    y = (x[:, 0] > 0).long() * 2 + (x[:, 1] > 0).long()
    tuner = FineTuner(Stack())
    for stage in range(4):
        print(f"stage {stage}: loss {tuner.epoch(x, y):.4f}, groups {len(tuner.optimizer.param_groups)}")
        tuner.unfreeze_next()
