# A new SGD with momentum at the start of each epoch. The epochs have more steps than are examined closely.
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(360, 6)
y = (x @ torch.randn(6, 1)).tanh()
model = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 1))
epoch = 0
while epoch < 6:
    momentum_optimizer = torch.optim.SGD(
        model.parameters(), lr=0.01, momentum=0.9
    )  # expect: optimizer-state-reset
    total = 0.0
    for rows in torch.randperm(len(x)).split(4):
        loss = nn.functional.mse_loss(model(x[rows]), y[rows])
        momentum_optimizer.zero_grad()
        loss.backward()
        momentum_optimizer.step()
        total += loss.item()
    epoch += 1
    print(f"{epoch} {total / 90:.4f}")
