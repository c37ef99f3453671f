"""A Parameter that is converted to double is no Parameter: the positions are in no optimizer and never change."""

import torch
from torch import nn

torch.manual_seed(2)


class Encoder(nn.Module):
    def __init__(self, n_tokens, length, width):
        super().__init__()
        self.tokens = nn.Embedding(n_tokens, width)
        self.positions = nn.Parameter(
            torch.randn(1, length, width)
        ).double()  # expect: param-not-in-optimizer
        self.out = nn.Linear(width, 2)

    def forward(self, ids):
        return self.out(torch.relu(self.tokens(ids) + self.positions.float()).mean(1))


encoder = Encoder(20, 5, 10)
optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-2)
for step in range(14):
    ids = torch.randint(20, (24, 5))
    loss = nn.functional.cross_entropy(encoder(ids), (ids[:, 0] > ids[:, -1]).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")
