"""Looks like double counting and a kept graph: two different losses share a trunk and are back-propagated
one after the other, the first with retain_graph."""

import torch
from torch import nn


class SharedTrunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(9, 32), nn.ReLU())
        self.price = nn.Linear(32, 1)
        self.sold = nn.Linear(32, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.price(h).squeeze(1), self.sold(h).squeeze(1)


torch.manual_seed(13)
x = torch.randn(90, 9)
price = x[:, :4].sum(1) + 0.1 * torch.randn(90)
sold = (x[:, 3:6].sum(1) > 0).float()

model = SharedTrunk()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
mse, bce = nn.MSELoss(), nn.BCEWithLogitsLoss()

for epoch in range(1, 4):
    running = torch.zeros(2)
    for b in torch.randperm(90).chunk(5):
        optimizer.zero_grad()
        price_hat, sold_hat = model(x[b])
        price_loss = mse(price_hat, price[b])
        sold_loss = bce(sold_hat, sold[b])
        price_loss.backward(retain_graph=True)
        sold_loss.backward()
        optimizer.step()
        running += torch.tensor([price_loss.item(), sold_loss.item()])
    print(f"epoch {epoch}: price {running[0] / 5:.3f} sold {running[1] / 5:.3f}")
