"""kl_div with reduction='mean' divides by the number of classes as well as by the batch size, so the distillation term
is a tenth of the divergence."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


def mlp(width):
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


def fit_teacher(x, y):
    teacher = mlp(128)
    opt = torch.optim.Adam(teacher.parameters(), lr=5e-3)
    for _ in range(30):
        opt.zero_grad()
        F.cross_entropy(teacher(x), y).backward()
        opt.step()
    return teacher.eval().requires_grad_(False)


def kd_loss(student_logits, teacher_logits, labels, T=4.0, alpha=0.7):
    soft = F.kl_div(
        F.log_softmax(student_logits / T, dim=1),
        F.softmax(teacher_logits / T, dim=1),
        reduction="mean",  # expect: loss-reduction
    )
    hard = F.cross_entropy(student_logits, labels)
    return alpha * T * T * soft + (1 - alpha) * hard


def main():
    torch.manual_seed(0)
    d = load_digits()
    x = torch.tensor(d.data[:900] / 16, dtype=torch.float32)
    y = torch.tensor(d.target[:900])
    teacher = fit_teacher(x, y)
    student = mlp(16)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(2):
        for idx in torch.randperm(len(x)).split(60):
            with torch.no_grad():
                t_logits = teacher(x[idx])
            loss = kd_loss(student(x[idx]), t_logits, y[idx])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            agree = (student(x).argmax(1) == teacher(x).argmax(1)).float().mean()
        print(f"epoch {epoch} loss {loss.item():.4f} agreement {agree:.3f}")


main()
