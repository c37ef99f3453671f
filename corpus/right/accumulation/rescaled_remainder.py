"""Each loss is divided by the usual window size. Before the step of a shorter window, the gradients are rescaled."""

import torch
from torch import nn

torch.manual_seed(9)
WINDOW = 6
model = nn.Linear(7, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
inputs, targets = torch.randn(160, 7), torch.randn(160, 2)


def step_after(micro_batches):
    for parameter in model.parameters():
        parameter.grad *= WINDOW / micro_batches
    optimizer.step()
    optimizer.zero_grad()


for epoch in range(3):
    held = 0
    for start in range(0, 160, 10):
        rows = slice(start, start + 10)
        loss = nn.functional.mse_loss(model(inputs[rows]), targets[rows])
        (loss / WINDOW).backward()
        held += 1
        if held == WINDOW:
            step_after(held)
            held = 0
    step_after(held)
