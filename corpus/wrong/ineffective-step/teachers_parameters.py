"""The optimizer of the student is given the teacher's parameters."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def build(width):
    return nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 4))


def main():
    torch.manual_seed(1)
    teacher = build(64)
    student = build(16)
    teacher.eval()
    optimizer = torch.optim.Adam(teacher.parameters(), lr=1e-3)  # expect: ineffective-step
    for step in range(25):
        x = torch.randn(16, 6)
        with torch.no_grad():
            target = F.softmax(teacher(x) / 2, dim=-1)
        loss = F.kl_div(F.log_softmax(student(x) / 2, -1), target, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("final", loss.item())


if __name__ == "__main__":
    main()
