"""A teacher that is to learn from its student's progress: the feedback multiplies the loss of detached logits."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
STEPS, UNLABELED = 16, 64


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))


def progress(student, x, y, before):
    with torch.no_grad():
        logits = student(x)
    return before - F.cross_entropy(logits, y)


def train():
    teacher, student = network(), network()
    t_opt = torch.optim.SGD(teacher.parameters(), lr=0.1)
    s_opt = torch.optim.SGD(student.parameters(), lr=0.1)
    centers = torch.randn(4, 8)
    for _ in range(STEPS):
        y = torch.randint(4, (16,))
        x = centers[y] + 0.3 * torch.randn(16, 8)
        extra = centers[torch.randint(4, (UNLABELED,))] + 0.3 * torch.randn(UNLABELED, 8)
        guesses = teacher(extra)
        labels = guesses.argmax(1)

        logits = student(x)
        before = F.cross_entropy(logits.detach(), y)
        s_loss = F.cross_entropy(student(extra), labels)
        s_opt.zero_grad()
        s_loss.backward()
        s_opt.step()

        gain = progress(student, x, y, before)
        supervised = F.cross_entropy(teacher(x), y)
        feedback = gain * F.cross_entropy(guesses.detach(), labels)
        t_loss = supervised + feedback  # expect: broken-graph
        t_opt.zero_grad()
        t_loss.backward()
        t_opt.step()
    print(f"student {s_loss.item():.3f} teacher {supervised.item():.3f}")


train()
