"""The loss on the held-out year is back-propagated too, and its gradient stays for the next step."""

import torch

torch.manual_seed(5)
years = torch.randn(6, 30, 4)
rain = years.sum(2) + 0.1 * torch.randn(6, 30)
net = torch.nn.Sequential(torch.nn.Linear(4, 12), torch.nn.Tanh(), torch.nn.Linear(12, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
history = []
for epoch in range(20):
    loss = torch.nn.functional.mse_loss(net(years[:-1]).squeeze(2), rain[:-1])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    val_loss = torch.nn.functional.mse_loss(net(years[-1]).squeeze(1), rain[-1])
    val_loss.backward()  # expect: cross-loss-leak
    history.append((loss.item(), val_loss.item()))
print(history[-1])
