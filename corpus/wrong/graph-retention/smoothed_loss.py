"""The smoothed loss for the progress line is built from loss tensors with their graph, so its graph grows by one batch
in each step of the whole run."""

import torch
import torch.nn as nn


class Meter:
    def __init__(self, beta=0.9):
        self.beta = beta
        self.value = None

    def update(self, v):
        self.value = v if self.value is None else self.beta * self.value + (1 - self.beta) * v


class LSTMModel(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.encoder = nn.Embedding(vocab, dim)
        self.lstm = nn.LSTM(dim, dim)
        self.decoder = nn.Linear(dim, vocab)

    def forward(self, x):
        return self.decoder(self.lstm(self.encoder(x))[0])


def batchify(text, bsz):
    chars = sorted(set(text))
    ids = torch.tensor([chars.index(c) for c in text])
    n = len(ids) // bsz
    return ids[: n * bsz].view(bsz, n).t().contiguous(), len(chars)


torch.manual_seed(1111)
text = "she sells sea shells by the sea shore and the shells she sells are sea shells for sure " * 10
data, ntokens = batchify(text, 8)
model = LSTMModel(ntokens, 24)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()
meter, bptt = Meter(), 12

for epoch in range(2):
    for i in range(0, data.size(0) - 1 - bptt, bptt):
        x, y = data[i : i + bptt], data[i + 1 : i + 1 + bptt]
        loss = criterion(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.update(loss)  # expect: graph-retention
    print(f"| epoch {epoch} | smoothed loss {meter.value:.3f}")
