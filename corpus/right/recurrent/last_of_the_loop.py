# Loops that overwrite a loss on purpose: the last refinement includes the earlier ones, a search stops at the first
# loss below a bound, and each step trains one of several heads.
import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(0)
cell, out = nn.GRUCell(5, 16), nn.Linear(16, 1)
heads = nn.ModuleList([nn.Linear(16, 1) for _ in range(3)])
opt = torch.optim.Adam([*cell.parameters(), *out.parameters(), *heads.parameters()], lr=1e-2)
for step in range(9):
    x, y = torch.randn(8, 4, 5), torch.randn(8, 4)
    opt.zero_grad()

    hidden = torch.zeros(8, 16)
    loss = 0.0
    for _ in range(4):
        hidden = cell(x[:, 0], hidden)
        loss = functional.mse_loss(out(hidden).squeeze(1), y[:, 0])
    loss.backward()

    label = 0.0
    hidden = torch.zeros(8, 16)
    for t in range(4):
        hidden = cell(x[:, t], hidden)
        label = functional.mse_loss(out(hidden).squeeze(1), y[:, 3])
    label.backward()

    found = 0.0
    for t in range(4):
        found = functional.l1_loss(out(cell(x[:, t], torch.zeros(8, 16))).squeeze(1), y[:, t])
        if found < 0.8:
            break
    found.backward()

    chosen = 0.0
    for number, head in enumerate(heads):
        if number == step % 3:
            chosen = functional.mse_loss(head(hidden.detach()).squeeze(1), y[:, number])
    chosen.backward()
    opt.step()
