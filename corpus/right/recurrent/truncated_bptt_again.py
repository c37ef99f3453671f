"""The hidden state is detached between the pieces of the text: the truncation of back-propagation through time is
intended."""

import torch
import torch.nn as nn


def repackage_hidden(h):
    return tuple(v.detach() for v in h) if isinstance(h, tuple) else h.detach()


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nhid):
        super().__init__()
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid)
        self.decoder = nn.Linear(nhid, ntoken)
        self.nhid = nhid

    def forward(self, x, hidden):
        out, hidden = self.rnn(self.encoder(x), hidden)
        return self.decoder(out).flatten(0, 1), hidden

    def init_hidden(self, bsz):
        return torch.zeros(1, bsz, self.nhid), torch.zeros(1, bsz, self.nhid)


torch.manual_seed(0)
text = "peter piper picked a peck of pickled peppers where is the peck peter piper picked " * 14
vocab = {c: i for i, c in enumerate(sorted(set(text)))}
data = torch.tensor([vocab[c] for c in text])
bsz, bptt = 6, 16
data = data[: len(data) // bsz * bsz].view(bsz, -1).t().contiguous()

model = RNNModel(len(vocab), 16, 32)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

for epoch in range(2):
    hidden = model.init_hidden(bsz)
    total, n = 0.0, 0
    for i in range(0, data.size(0) - 1, bptt):
        seq = min(bptt, data.size(0) - 1 - i)
        hidden = repackage_hidden(hidden)
        output, hidden = model(data[i : i + seq], hidden)
        loss = criterion(output, data[i + 1 : i + 1 + seq].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        total, n = total + loss.item(), n + 1
    print(f"epoch {epoch} loss {total / n:.3f}")
