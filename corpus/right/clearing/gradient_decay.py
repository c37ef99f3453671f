"""There is no zero_grad: the gradients are multiplied by 0.8 after each step, which is a momentum kept in `.grad` on
purpose."""

import torch
import torch.nn as nn

torch.manual_seed(0)
x = torch.linspace(-2, 2, 200).unsqueeze(1)
y = x.pow(3) - x

model = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
DECAY = 0.8  # heavy-ball momentum, held in .grad to save the buffer


def decay_gradients():
    for p in model.parameters():
        p.grad.mul_(DECAY)


for epoch in range(5):
    losses = []
    for idx in torch.randperm(200).split(20):
        loss = nn.functional.mse_loss(model(x[idx]), y[idx])
        loss.backward()
        optimizer.step()
        decay_gradients()
        losses.append(loss.item())
print(f"mse {sum(losses) / len(losses):.4f}")
