"""One transformer layer is applied four times on purpose, as in ALBERT, and stands four times in the list."""

import torch
from torch import nn

torch.manual_seed(0)


class Encoder(nn.Module):
    def __init__(self, dim=16, depth=4):
        super().__init__()
        self.embed = nn.Embedding(20, dim)
        layer = nn.TransformerEncoderLayer(dim, 2, 32, dropout=0.0, batch_first=True)
        self.layers = nn.ModuleList([layer] * depth)
        self.head = nn.Linear(dim, 20)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


model = Encoder()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(10):
    tokens = torch.randint(20, (8, 12))
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
