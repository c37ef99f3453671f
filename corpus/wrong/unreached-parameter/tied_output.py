"""The second norm of a small language model is never used; its output layer shares the embedding's weight."""

import torch
import torch.nn.functional as F
from torch import nn

TEXT = "the quick brown fox jumps over the lazy dog and runs away from the old brown dog again "


class LanguageModel(nn.Module):
    def __init__(self, vocabulary, width=16):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.norm1 = nn.LayerNorm(width)
        self.mix = nn.GRU(width, width, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.out = nn.Linear(width, vocabulary, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens):
        h, _ = self.mix(self.norm1(self.embed(tokens)))
        return self.out(self.norm1(h))  # expect: unreached-parameter


torch.manual_seed(0)
letters = sorted(set(TEXT))
ids = torch.tensor([letters.index(letter) for letter in TEXT])
windows = ids.unfold(0, 12, 3)
model = LanguageModel(len(letters))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

for epoch in range(2):
    for batch in windows.split(8):
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: {loss.item():.3f}")
