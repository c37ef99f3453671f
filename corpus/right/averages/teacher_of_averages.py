"""A mean teacher whose averaged weights keep a graph until the next step, but whose targets are detached, so the graph
is never used."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

torch.manual_seed(2)
x, y = torch.randn(64, 8), torch.randint(0, 3, (64,))
student = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
teacher = {name: weight.detach().clone() for name, weight in student.named_parameters()}
opt = torch.optim.Adam(student.parameters(), lr=5e-3)
for _epoch in range(4):
    for part in torch.randperm(64).split(16):
        for name, weight in student.named_parameters():
            teacher[name] = torch.lerp(teacher[name].detach(), weight, 0.1)
        target = functional_call(student, teacher, (x[part],)).softmax(-1).detach()
        found = student(x[part] + 0.1 * torch.randn(16, 8))
        loss = F.cross_entropy(found, y[part]) + F.kl_div(
            found.log_softmax(-1), target, reduction="batchmean"
        )
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"loss {loss.item():.4f}")
