"""Train a tiny language model on lines of very different length, padded, in micro-batches of four lines."""

import this  # the text, and some lines of output

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence

PAD = 0

torch.manual_seed(0)
text = "".join(this.d.get(letter, letter) for letter in this.s)
vocabulary = sorted(set(text))
lines = [torch.tensor([1 + vocabulary.index(c) for c in line]) for line in text.splitlines() if len(line) > 1]
lines.sort(key=len)  # groups lines of similar length: less padding
micro_batches = [
    pad_sequence(lines[i : i + 4], batch_first=True, padding_value=PAD) for i in range(0, 20, 4)
][:4]


class Model(nn.Module):
    def __init__(self, size: int, width: int = 48) -> None:
        super().__init__()
        self.embed = nn.Embedding(size, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, size)

    def forward(self, tokens):
        return self.head(self.rnn(self.embed(tokens))[0])


model = Model(len(vocabulary) + 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

for epoch in range(6):
    total = 0.0
    count = sum(int((tokens[:, 1:] != PAD).sum()) for tokens in micro_batches)
    for tokens in micro_batches:
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], ignore_index=PAD, reduction="sum")
        (loss / count).backward()
        total += loss.item() / count
    optimizer.step()
    optimizer.zero_grad()
    print(f"epoch {epoch}: loss {total:.3f}")
