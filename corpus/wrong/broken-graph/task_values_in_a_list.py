"""The task losses pass through a list of numbers: only the task weights learn."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(4)


class TwoTasks(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 12), nn.Tanh())
        self.heads = nn.ModuleList([nn.Linear(12, 1), nn.Linear(12, 1)])
        self.log_variances = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        h = self.body(x)
        return [head(h).squeeze(1) for head in self.heads]


model = TwoTasks()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x = torch.randn(80, 6)
targets = [x[:, 0] * x[:, 1], x[:, 2].sin()]
for step in range(15):
    values = []
    for prediction, target in zip(model(x), targets):
        values.append(F.mse_loss(prediction, target).item())  # expect: broken-graph
    tasks = torch.tensor(values)
    loss = (tasks * torch.exp(-model.log_variances) + model.log_variances).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
