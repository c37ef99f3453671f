"""The teacher, which has no gradients, is cleared at every batch and the student never: by the twelfth step
its gradient is 6.3 times as large, and the weights have gone 4.6 times as far.
"""

import copy
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn


def mlp(*sizes):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def kd_loss(student_logits, teacher_logits, labels, cfg):
    soft = F.kl_div(
        F.log_softmax(student_logits / cfg.temperature, dim=-1),
        F.softmax(teacher_logits / cfg.temperature, dim=-1),
        reduction="batchmean",
    )
    hard = F.cross_entropy(student_logits, labels)
    return cfg.alpha * cfg.temperature**2 * soft + (1 - cfg.alpha) * hard


def distil(student, teacher, batches, cfg):
    teacher = copy.deepcopy(teacher).eval().requires_grad_(False)
    optimizer = torch.optim.SGD(student.parameters(), lr=cfg.lr)
    for epoch in range(cfg.epochs):
        losses = []
        for inputs, labels in batches:
            teacher.zero_grad()  # expect: missing-zero-grad
            with torch.no_grad():
                teacher_logits = teacher(inputs)
            loss = kd_loss(student(inputs), teacher_logits, labels, cfg)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch} kd loss {sum(losses) / len(losses):.4f}")


def main():
    cfg = SimpleNamespace(temperature=2.0, alpha=0.7, lr=0.1, epochs=2)
    torch.manual_seed(55)
    centres = torch.randn(5, 12) * 1.5
    labels = torch.randint(5, (96,))
    inputs = centres[labels] + torch.randn(96, 12)
    teacher, student = mlp(12, 64, 64, 5), mlp(12, 16, 5)
    distil(student, teacher, list(zip(inputs.split(16), labels.split(16))), cfg)


if __name__ == "__main__":
    main()
