"""Illegal moves have probability zero; where() hides the log of it forward but not backward: 4 of 6 gradients
are NaN in the first update, and everything from the second on."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BOARD, ENTROPY_COEF = 9, 0.01


class PolicyValue(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(BOARD, 48), nn.Tanh())
        self.pi = nn.Linear(48, BOARD)
        self.v = nn.Linear(48, 1)

    def forward(self, board):
        h = self.shared(board)
        logits = self.pi(h).masked_fill(board != 0, float("-inf"))
        return logits, self.v(h).squeeze(-1)


def entropy(probs):
    plogp = torch.where(probs > 0, probs * probs.log(), torch.zeros_like(probs))  # expect: nonfinite-gradient
    return -plogp.sum(-1)


def expert(board):
    """The centre first, then corners, then sides; the value counts the stones."""
    preference = torch.tensor([5.0, 1.0, 4.0, 1.5, 9.0, 0.5, 3.0, 2.0, 2.5])
    return preference.masked_fill(board != 0, float("-inf")).argmax(-1), board.sum(-1) / BOARD


def random_boards(n):
    boards = torch.zeros(n, BOARD)
    for row in boards:
        taken = torch.randperm(BOARD)[: int(torch.randint(0, 6, ()))]
        row[taken] = torch.randint(0, 2, taken.shape).float() * 2 - 1
    return boards


class Imitation:
    def __init__(self, lr=1e-3):
        self.net = PolicyValue()
        self.opt = torch.optim.Adam(self.net.parameters(), lr=lr)

    def update(self, boards):
        moves, outcome = expert(boards)
        logits, values = self.net(boards)
        policy_loss = F.cross_entropy(logits, moves)
        value_loss = F.mse_loss(values, outcome)
        bonus = entropy(logits.softmax(-1)).mean()
        loss = policy_loss + 0.5 * value_loss - ENTROPY_COEF * bonus
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return {"pi": policy_loss.item(), "v": value_loss.item(), "entropy": bonus.item()}


torch.manual_seed(77)
agent = Imitation()
for step in range(6):
    stats = agent.update(random_boards(32))
    print(f"{step:2d} " + " ".join(f"{k}={v:.3f}" for k, v in stats.items()))
