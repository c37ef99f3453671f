"""The prompts of earlier tasks are frozen, but their gradients are zero, so momentum and weight decay move them."""

import torch
import torch.nn.functional as F
from torch import nn


class Prompted(nn.Module):
    def __init__(self, n_tasks):
        super().__init__()
        self.body = nn.Linear(8, 8)
        for p in self.body.parameters():
            p.requires_grad_(False)
        self.prompts = nn.ModuleList(nn.Linear(8, 8) for _ in range(n_tasks))
        self.heads = nn.ModuleList(nn.Linear(8, 3) for _ in range(n_tasks))

    def forward(self, x, task):
        return self.heads[task](torch.tanh(self.prompts[task](self.body(x))))


def fit(net, optimizer, task, x, y):
    for number, (prompt, head) in enumerate(zip(net.prompts, net.heads)):
        for p in [*prompt.parameters(), *head.parameters()]:
            p.requires_grad_(number == task)  # expect: frozen-state-drift
    for rows in torch.arange(len(x)).split(12):
        optimizer.zero_grad(set_to_none=False)
        loss = F.cross_entropy(net(x[rows], task), y[rows])
        loss.backward()
        optimizer.step()
    return loss.item()


torch.manual_seed(6)
net = Prompted(3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
for task in range(3):
    x = torch.randn(48, 8) + task
    print(task, f"{fit(net, optimizer, task, x, x[:, :3].argmax(1)):.4f}")
