"""The teacher answers with a graph, and the distillation loss is differentiated through it as well: 548 kB of
gradients that nothing clears, and 737 kB saved for backward in place of 8."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Settings:
    temperature: float = 3.0
    alpha: float = 0.7
    lr: float = 3e-3
    teacher_width: int = 256
    student_width: int = 16
    epochs: int = 2


class MLP(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        dims = [16] + [width] * depth
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in zip(dims, dims[1:]))
        self.out = nn.Linear(width, 4)

    def forward(self, x):
        for layer in self.hidden:
            x = F.gelu(layer(x))
        return self.out(x)


class Distiller:
    def __init__(self, teacher, student, settings):
        self.teacher, self.student, self.cfg = teacher.eval(), student, settings
        self.optimizer = torch.optim.AdamW(student.parameters(), lr=settings.lr)

    def kd_loss(self, x, y):
        T = self.cfg.temperature
        student_logits = self.student(x)
        teacher_logits = self.teacher(x)  # expect: wasted-gradient
        soft = F.kl_div(
            F.log_softmax(student_logits / T, dim=1),
            F.softmax(teacher_logits / T, dim=1),
            reduction="batchmean",
        )
        return self.cfg.alpha * T * T * soft + (1 - self.cfg.alpha) * F.cross_entropy(student_logits, y)

    def epoch(self, batches):
        self.student.train()
        losses = []
        for x, y in batches:
            self.optimizer.zero_grad()
            loss = self.kd_loss(x, y)
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        return sum(losses) / len(losses)


if __name__ == "__main__":
    torch.manual_seed(61)
    cfg = Settings()
    x = torch.randn(128, 16)
    y = (x @ torch.randn(16, 4)).argmax(1)
    batches = list(zip(x.split(32), y.split(32)))
    distiller = Distiller(MLP(cfg.teacher_width, 3), MLP(cfg.student_width, 1), cfg)
    for epoch in range(cfg.epochs):
        print(f"epoch {epoch}: kd {distiller.epoch(batches):.4f}")
