"""A GRU reads a melody and is to predict the next note, but the targets are the notes that it reads."""

import torch
import torch.nn.functional as F
from torch import nn


class Melody(nn.Module):
    def __init__(self):
        super().__init__()
        self.notes = nn.Embedding(20, 12)
        self.memory = nn.GRU(12, 24, num_layers=2, batch_first=True)
        self.scores = nn.Linear(24, 20)

    def forward(self, notes):
        return self.scores(self.memory(self.notes(notes))[0])


torch.manual_seed(0)
song = torch.randint(20, (400,))
model = Melody()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(15):
    starts = torch.randint(len(song) - 13, (8,))
    bars = torch.stack([song[i : i + 12] for i in starts])
    loss = F.cross_entropy(model(bars).transpose(1, 2), bars)  # expect: loss-input
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
