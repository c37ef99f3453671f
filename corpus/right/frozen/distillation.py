"""Looks like a cut term: the teacher's logits come from under no_grad and are a constant of the
distillation loss, which is scaled by the temperature squared."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train_teacher(teacher, loader, steps):
    opt = torch.optim.Adam(teacher.parameters(), lr=5e-3)
    batches = iter(loader)
    for _ in range(steps):
        x, y = next(batches)
        opt.zero_grad()
        F.cross_entropy(teacher(x), y).backward()
        opt.step()


class Distiller:
    def __init__(self, student, teacher, T=4.0, alpha=0.7):
        self.student, self.teacher = student, teacher
        self.teacher.eval()
        for p in self.teacher.parameters():
            p.requires_grad_(False)
        self.T, self.alpha = T, alpha
        self.optimizer = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9)

    def loss(self, x, y):
        student_logits = self.student(x)
        with torch.no_grad():
            teacher_logits = self.teacher(x)
        soft = F.kl_div(
            F.log_softmax(student_logits / self.T, dim=1),
            F.log_softmax(teacher_logits / self.T, dim=1),
            reduction="batchmean",
            log_target=True,
        )
        return self.alpha * self.T**2 * soft + (1 - self.alpha) * F.cross_entropy(student_logits, y)

    def fit(self, loader, epochs):
        for epoch in range(epochs):
            self.student.train()
            for x, y in loader:
                loss = self.loss(x, y)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            print(f"epoch {epoch}: distillation loss {loss.item():.3f}")


def main():
    torch.manual_seed(2)
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x[:384], dtype=torch.float32) / 16, torch.tensor(y[:384])
    loader = DataLoader(TensorDataset(x, y), 48, shuffle=True)
    teacher = nn.Sequential(
        nn.Linear(64, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Dropout(0.2), nn.Linear(96, 10)
    )
    train_teacher(teacher, loader, steps=8)
    student = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    Distiller(student, teacher).fit(loader, epochs=2)


main()
