"""Each token goes to one expert only, so in many batches some experts get no gradient at all and are not stepped."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Top1MoE(nn.Module):
    def __init__(self, d, n_experts):
        super().__init__()
        self.gate = nn.Linear(d, n_experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(d, 16), nn.ReLU(), nn.Linear(16, d)) for _ in range(n_experts)
        )

    def forward(self, x):
        probs = self.gate(x).softmax(-1)
        weight, choice = probs.max(-1)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            rows = (choice == e).nonzero(as_tuple=True)[0]
            if len(rows):
                out = out.index_add(0, rows, weight[rows, None] * expert(x[rows]))
        load = F.one_hot(choice, len(self.experts)).float().mean(0)
        balance = len(self.experts) * (load * probs.mean(0)).sum()
        return x + out, balance


torch.manual_seed(2)
moe, head = Top1MoE(6, 6), nn.Linear(6, 1)
optimizer = torch.optim.Adam([*moe.parameters(), *head.parameters()], lr=0.01)
x = torch.randn(160, 6)
y = torch.where(x[:, :1] > 0, x[:, 1:2].abs(), -x[:, 2:3])
for epoch in range(3):
    for idx in torch.randperm(160).split(8):
        h, balance = moe(x[idx])
        loss = F.mse_loss(head(h), y[idx]) + 0.01 * balance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
