"""A loop over the tasks computes one loss for each, and only the last task's is back-propagated."""

import torch
from torch import nn

torch.manual_seed(2)
TASKS = ["height", "weight", "age"]
trunk = nn.Sequential(nn.Linear(7, 32), nn.Tanh())
heads = nn.ModuleDict({task: nn.Linear(32, 1) for task in TASKS})
optimizer = torch.optim.AdamW([*trunk.parameters(), *heads.parameters()], lr=5e-3)
mse = nn.MSELoss()
truth = torch.randn(7, len(TASKS))
for step in range(20):
    x = torch.randn(40, 7)
    targets = {task: x @ truth[:, [i]] for i, task in enumerate(TASKS)}
    features = trunk(x)
    log = {}
    for task in TASKS:
        prediction = heads[task](features)
        loss = mse(prediction, targets[task])  # expect: term-left-out
        log[task] = round(loss.item(), 3)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, log)
