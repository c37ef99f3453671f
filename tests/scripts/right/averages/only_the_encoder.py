"""Only the encoder of the copy follows the trained one, on purpose: its head stays as it was drawn, as in random
distillation, and a second copy, of the encoder alone, is paired with the same encoder."""

import copy

import torch
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 8))
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.encoder(x))


net = Net()
follower = copy.deepcopy(net).requires_grad_(False)
target_encoder = copy.deepcopy(net.encoder).requires_grad_(False)
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for step in range(20):
    x = torch.randn(32, 6)
    with torch.no_grad():
        goal = follower(x)
        features = target_encoder(x + 0.1)
    hidden = net.encoder(x)
    loss = nn.functional.mse_loss(net.head(hidden), goal + x[:, :4]) + nn.functional.mse_loss(
        hidden, features
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for ours, theirs in zip(net.encoder.parameters(), follower.encoder.parameters()):
            theirs.lerp_(ours, 0.05)
        for ours, theirs in zip(net.encoder.parameters(), target_encoder.parameters()):
            theirs.lerp_(ours, 0.05)
print(f"loss {loss.item():.4f}")
