"""Semi-supervised training with a teacher that is an average of the student. The teacher is in no
optimizer, gets no gradient, and is run in train mode for its dropout; all of that is meant."""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


def make_net():
    return nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Dropout(0.2), nn.Linear(48, 10))


@torch.no_grad()
def update_teacher(teacher, student, step, decay=0.95):
    d = min(decay, 1 - 1 / (step + 1))
    for t, s in zip(teacher.parameters(), student.parameters()):
        t.mul_(d).add_(s, alpha=1 - d)


def ramp(step, length=15, top=2.0):
    return top * min(1.0, step / length)


def main():
    torch.manual_seed(231)
    d = load_digits()
    x = torch.tensor(d.data, dtype=torch.float32) / 16
    y = torch.tensor(d.target)
    order = torch.randperm(len(x))
    labeled, unlabeled, held_out = order[:80], order[80:1400], order[1400:]

    student = make_net()
    teacher = copy.deepcopy(student)
    for p in teacher.parameters():
        p.requires_grad = False
    optimizer = torch.optim.Adam(student.parameters(), lr=5e-3)

    for step in range(30):
        lab = labeled[torch.randint(0, len(labeled), (40,))]
        unl = unlabeled[torch.randint(0, len(unlabeled), (80,))]
        supervised = F.cross_entropy(student(x[lab]), y[lab])
        noisy = x[unl] + 0.1 * torch.randn(len(unl), 64)
        target = F.softmax(teacher(x[unl]), dim=1)
        consistency = F.mse_loss(F.softmax(student(noisy), dim=1), target)
        loss = supervised + ramp(step) * consistency
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        update_teacher(teacher, student, step)
        if step % 10 == 0:
            print(f"step {step:2d}  sup {supervised.item():.4f}  cons {consistency.item():.5f}")

    student.eval(), teacher.eval()
    for name, net in (("student", student), ("teacher", teacher)):
        with torch.no_grad():
            acc = (net(x[held_out]).argmax(1) == y[held_out]).float().mean().item()
        print(f"{name}: {acc:.3f}")


main()
