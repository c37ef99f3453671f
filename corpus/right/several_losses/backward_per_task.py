"""Three backward calls come before one step, without a division: the gradients of the three tasks are meant to be
summed."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(4)


class MultiTask(nn.Module):
    def __init__(self, tasks):
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(12, 32), nn.ReLU())
        self.heads = nn.ModuleDict({name: nn.Linear(32, n) for name, n in tasks.items()})

    def forward(self, x, task):
        return self.heads[task](self.shared(x))


def stream(task, mix, size=24):
    while True:
        x = torch.randn(size, 12)
        z = x @ mix
        yield x, {"sign": (z[:, 0] > 0).long(), "octant": z.argmax(1), "value": z[:, :1].sin()}[task]


tasks = {"sign": 2, "octant": 4, "value": 1}
mix = torch.randn(12, 4) / 3
streams = {t: stream(t, mix) for t in tasks}
model = MultiTask(tasks)
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)

for epoch in range(2):
    for _ in range(12):
        optimizer.zero_grad()
        log = {}
        for task, batches in streams.items():
            x, y = next(batches)
            out = model(x, task)
            loss = F.mse_loss(out, y) if task == "value" else F.cross_entropy(out, y)
            loss.backward()
            log[task] = round(loss.item(), 4)
        optimizer.step()
    print(epoch, log)
