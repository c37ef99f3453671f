"""The decay waits for ``updated``, but the steps are made where the gradients are large, and only the other branch
sets it."""

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

torch.manual_seed(11)
prices = torch.cumsum(torch.randn(260), 0)
net = nn.GRU(1, 10, batch_first=True)
head = nn.Linear(10, 1)
weights = [*net.parameters(), *head.parameters()]
sgd = torch.optim.SGD(weights, lr=0.05)
decay = torch.optim.lr_scheduler.StepLR(sgd, 2, 0.3)  # expect: scheduler-cadence

for epoch in range(6):
    updated = False
    total = 0.0
    for start in range(0, 240, 40):
        part = prices[start : start + 41].diff().reshape(1, -1, 1)
        loss = (head(net(part[:, :-1])[0]) - part[:, 1:]).square().mean()
        sgd.zero_grad()
        loss.backward()
        if clip_grad_norm_(weights, 1.0) > 1e-6:
            sgd.step()
        else:
            print("tiny gradient")
            sgd.step()
            updated = True
        total += loss.item()
    if updated and epoch > 0:
        decay.step()
    print(epoch, round(total / 6, 4))
