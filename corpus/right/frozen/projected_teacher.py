"""Looks like a new head that is frozen by mistake with the network: the teacher's last layer is a random projection of
its features, which the student has to predict."""

import torch
from torch import nn


def network(n_out):
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, n_out))


torch.manual_seed(0)
checkpoint = network(32).state_dict()
teacher = network(32)
teacher.load_state_dict(checkpoint)
teacher.append(nn.Linear(32, 6))
for p in teacher.parameters():
    p.requires_grad = False

student = network(6)
optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
for step in range(15):
    x = torch.randn(64, 8)
    loss = nn.functional.mse_loss(student(x), teacher(x))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}")
