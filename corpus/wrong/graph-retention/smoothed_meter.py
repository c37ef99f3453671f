"""The smoothed loss is fed with the loss tensor instead of its value, so every step's graph hangs on the previous ones and memory grows with each batch."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class SmoothedValue:
    """Exponentially smoothed quantity for the progress line."""

    def __init__(self, momentum=0.9):
        self.momentum = momentum
        self.value = None

    def update(self, x):
        if self.value is None:
            self.value = x
        else:
            self.value = self.momentum * self.value + (1 - self.momentum) * x  # expect: graph-retention

    def __str__(self):
        return f"{float(self.value):.4f}"


class Student(nn.Module):
    def __init__(self, n_in=16, n_out=5):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(n_in, 12), nn.Hardswish(), nn.Linear(12, n_out))

    def forward(self, x):
        return self.net(x)


def make_teacher():
    torch.manual_seed(700)
    teacher = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 5))
    return teacher.requires_grad_(False).eval()


def distillation_loss(student_logits, teacher_logits, labels, temperature=3.0, alpha=0.7):
    soft = (
        F.kl_div(
            F.log_softmax(student_logits / temperature, dim=1),
            F.softmax(teacher_logits / temperature, dim=1),
            reduction="batchmean",
        )
        * temperature**2
    )
    hard = F.cross_entropy(student_logits, labels)
    return alpha * soft + (1 - alpha) * hard


def distill(student, teacher, loader, epochs):
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs * len(loader))
    smoothed = SmoothedValue()
    for epoch in range(epochs):
        student.train()
        for x, y in loader:
            with torch.no_grad():
                teacher_logits = teacher(x)
            loss = distillation_loss(student(x), teacher_logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            smoothed.update(loss)  # expect: graph-retention
        print(f"epoch {epoch} smoothed loss {smoothed}")


def main():
    torch.set_num_threads(1)
    teacher = make_teacher()
    torch.manual_seed(70)
    x = torch.randn(320, 16)
    y = teacher(4 * x).argmax(1)
    student = Student()
    distill(student, teacher, DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True), epochs=2)
    student.eval()
    with torch.no_grad():
        agree = (student(x).argmax(1) == teacher(x).argmax(1)).float().mean().item()
    print(f"agreement with teacher {agree:.3f}")


if __name__ == "__main__":
    main()
