"""One function serves both players. Only the turn of the expert detaches the copy."""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce, mse_loss

torch.manual_seed(5)
forger = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 9))
expert = nn.Sequential(nn.Linear(9, 20), nn.Tanh(), nn.Linear(20, 1))
players = {
    "forger": torch.optim.RMSprop(forger.parameters(), lr=1e-3),
    "expert": torch.optim.RMSprop(expert.parameters(), lr=1e-3),
}


def opinion(painting, genuine):
    logits = expert(painting)
    return bce(logits, torch.full_like(logits, float(genuine)))


def loss_of(player, idea, original):
    copy = forger(idea)
    if player == "forger":
        deceived = opinion(copy, genuine=True)
        return deceived + 10 * mse_loss(copy, original)
    return opinion(copy.detach(), genuine=False) + opinion(original, genuine=True)


technique = torch.randn(6, 9)
for _ in range(12):
    idea = torch.randn(24, 6)
    original = torch.tanh(idea @ technique)
    for player, optimizer in players.items():
        optimizer.zero_grad()
        loss = loss_of(player, idea, original)
        loss.backward()
        optimizer.step()
