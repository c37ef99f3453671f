"""PCGrad collects one gradient per task, and nothing clears between the tasks: the second task's gradient includes the
first one's, and the third one's both."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)
shared = nn.Sequential(nn.Linear(9, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
heads = nn.ModuleList(nn.Linear(16, 1) for _ in range(3))
optimizer = torch.optim.Adam([*shared.parameters(), *heads.parameters()], lr=3e-3)
truth = torch.randn(9, 3)

for step in range(15):
    x = torch.randn(64, 9)
    y = (x @ truth).tanh()
    features = shared(x)
    losses = [F.mse_loss(head(features).squeeze(1), y[:, i]) for i, head in enumerate(heads)]

    optimizer.zero_grad()
    grads = []
    for loss in losses:
        loss.backward(retain_graph=True)  # expect: missing-zero-grad
        grads.append(torch.cat([p.grad.flatten().clone() for p in shared.parameters()]))

    projected = [g.clone() for g in grads]
    for i, g in enumerate(projected):
        for j, other in enumerate(grads):
            dot = torch.dot(g, other)
            if i != j and dot < 0:
                g -= dot / other.norm() ** 2 * other
    merged = torch.stack(projected).mean(0)

    start = 0
    for p in shared.parameters():
        p.grad = merged[start : start + p.numel()].view_as(p).clone()
        start += p.numel()
    optimizer.step()
    print(step, [round(loss.item(), 4) for loss in losses])
