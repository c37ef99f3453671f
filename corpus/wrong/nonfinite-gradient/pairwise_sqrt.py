"""The distance matrix includes each point's distance to itself; the derivative of sqrt at 0 is infinite, and times zero
it makes all gradients NaN at the first step."""

import torch
import torch.nn as nn

torch.manual_seed(14)


def pdist(e):
    sq = (e.unsqueeze(1) - e.unsqueeze(0)).pow(2).sum(-1)
    return sq.sqrt()  # expect: nonfinite-gradient


def triplet_loss(e, y, margin=0.5):
    d = pdist(e)
    same = y[:, None] == y[None]
    hardest_pos = (d * same).max(1).values
    hardest_neg = (d + 1e3 * same).min(1).values
    return torch.relu(hardest_pos - hardest_neg + margin).mean()


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, x):
        return self.net(x)


y_all = torch.arange(200) % 5
x_all = torch.randn(5, 12)[y_all] + 0.5 * torch.randn(200, 12)
model = Embedder()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(2):
    for idx in torch.randperm(200).split(25):
        loss = triplet_loss(model(x_all[idx]), y_all[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"epoch {epoch} triplet loss {loss.item():.4f}")
