"""Padded events last no time at all, and the quotient is masked only after the division: all 7 gradients are
NaN in the first update already, and all weights after it."""

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence


class RateModel(nn.Module):
    """Predict how much is consumed between two events, hence the rate."""

    def __init__(self, n_kinds=5, hidden=16):
        super().__init__()
        self.embed = nn.Embedding(n_kinds, hidden)
        self.gru = nn.GRU(hidden, hidden, batch_first=True)
        self.amount = nn.Linear(hidden, 1)

    def forward(self, kinds):
        states, _ = self.gru(self.embed(kinds))
        return self.amount(states).squeeze(-1)


def rate_loss(amount, elapsed, rate, mask):
    predicted = amount / elapsed  # expect: nonfinite-gradient
    error = torch.where(mask, (predicted - rate) ** 2, torch.zeros_like(rate))
    return error.sum() / mask.sum()


def collate(sequences):
    kinds, elapsed, rate = (pad_sequence(list(part), batch_first=True) for part in zip(*sequences))
    lengths = torch.tensor([len(s[0]) for s in sequences])
    mask = torch.arange(kinds.size(1))[None, :] < lengths[:, None]
    return kinds, elapsed, rate, mask


def simulate(n):
    sequences = []
    for _ in range(n):
        length = int(torch.randint(3, 9, ()))
        kinds = torch.randint(0, 5, (length,))
        elapsed = 0.5 + torch.rand(length)
        sequences.append((kinds, elapsed, 1.0 + 0.3 * kinds.float() + 0.1 * torch.randn(length)))
    return sequences


torch.manual_seed(31)
loader = torch.utils.data.DataLoader(simulate(60), batch_size=12, collate_fn=collate)
model = RateModel()
optimizer = torch.optim.Adamax(model.parameters(), lr=5e-3)

for epoch in range(2):
    for i, (kinds, elapsed, rate, mask) in enumerate(loader):
        model.zero_grad()
        loss = rate_loss(model(kinds), elapsed, rate, mask)
        loss.backward()
        optimizer.step()
        if i % 4 == 0:
            print("epoch {} batch {} loss {:.4f}".format(epoch, i, loss.item()))
