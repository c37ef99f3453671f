"""Micro-batches are counted from 1 and the count is raised once more before it is compared: the first window
of an epoch has three micro-batches with weight 3/4 in all, the twelfth is thrown away, and the first gradient
is off by 26 %.
"""

import torch
import torch.nn as nn

torch.manual_seed(7)

text = "the quick brown fox jumps over the lazy dog and runs away from the hounds. " * 20
vocab = sorted(set(text))
stoi = {c: i for i, c in enumerate(vocab)}
data = torch.tensor([stoi[c] for c in text])

seq_len = 16
micro_batch = 4
grad_accum = 4
device = "cpu"


class CharRNN(nn.Module):
    def __init__(self, vocab_size, hidden=32):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, 16)
        self.rnn = nn.GRU(16, hidden, batch_first=True)
        self.out = nn.Linear(hidden, vocab_size)

    def forward(self, x):
        h, _ = self.rnn(self.embed(x))
        return self.out(h)


def batches(data):
    n = seq_len * micro_batch
    for k in range(12):
        chunk = data[k * n : k * n + n + 1]
        yield chunk[:-1].view(micro_batch, seq_len), chunk[1:].view(micro_batch, seq_len)


model = CharRNN(len(vocab)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
loss_fn = nn.CrossEntropyLoss()

for epoch in range(2):
    total = 0.0
    optimizer.zero_grad()
    for step, (x, y) in enumerate(batches(data), start=1):
        logits = model(x.to(device))
        loss = loss_fn(logits.flatten(0, 1), y.to(device).flatten())
        (loss / grad_accum).backward()
        total += loss.item()
        if (step + 1) % grad_accum == 0:  # expect: accumulation-window
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            optimizer.zero_grad()
    print("epoch", epoch, "loss", round(total / step, 4))
