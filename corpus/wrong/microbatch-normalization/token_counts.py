"""Each micro-batch's loss is a mean over its own real tokens and all get weight 1/4, so a token in a short batch
weighs several times as much as one in a long batch."""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

PAD = 0
random.seed(5)
torch.manual_seed(5)


def make_sentence():
    length = random.choice([3, 4, 5, 6, 24, 28])
    start = random.randint(1, 9)
    return torch.tensor([(start + 2 * k) % 19 + 1 for k in range(length)])


sentences = [make_sentence() for _ in range(96)]
sentences.sort(key=len)
batches = [pad_sequence(sentences[i : i + 6], batch_first=True, padding_value=PAD) for i in range(0, 96, 6)]


class Tagger(nn.Module):
    def __init__(self, vocab=20, dim=24):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=PAD)
        self.lstm = nn.LSTM(dim, dim, batch_first=True)
        self.proj = nn.Linear(dim, vocab)

    def forward(self, tokens):
        return self.proj(self.lstm(self.embed(tokens))[0])


model = Tagger()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
ACCUM = 4

for epoch in range(3):
    random.shuffle(batches)
    logged = []
    for first in range(0, len(batches), ACCUM):
        optimizer.zero_grad()
        for tokens in batches[first : first + ACCUM]:
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=PAD)
            (loss / ACCUM).backward()  # expect: microbatch-normalization
            logged.append(loss.item())
        optimizer.step()
    print(f"epoch {epoch} loss {sum(logged) / len(logged):.3f}")
