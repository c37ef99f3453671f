"""The gradients are clipped after the step has used them: steps are given up to 12 times the norm that was
asked for, and the loss rises to 7.2 in place of falling to 2.5.
"""

import math

import torch
import torch.nn as nn

torch.manual_seed(1111)

corpus = torch.randint(0, 20, (4, 61))
corpus[:, 1::2] = (corpus[:, ::2][:, :30] + 7) % 20  # every other word follows from the one before

emsize, nhid, bptt, lr, clip = 16, 32, 10, 20.0, 0.25


class RNNModel(nn.Module):
    def __init__(self, ntoken):
        super().__init__()
        self.encoder = nn.Embedding(ntoken, emsize)
        self.rnn = nn.LSTM(emsize, nhid, batch_first=True)
        self.decoder = nn.Linear(nhid, ntoken)

    def forward(self, input, hidden):
        output, hidden = self.rnn(self.encoder(input), hidden)
        return self.decoder(output), hidden


def repackage_hidden(h):
    """Wraps hidden states in new tensors, to detach them from their history."""
    return tuple(v.detach() for v in h)


def get_batch(source, i):
    return source[:, i : i + bptt], source[:, i + 1 : i + 1 + bptt]


model = RNNModel(20)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=lr)


def train():
    model.train()
    total_loss = 0.0
    hidden = (torch.zeros(1, 4, nhid), torch.zeros(1, 4, nhid))
    for i in range(0, corpus.size(1) - 1, bptt):
        data, targets = get_batch(corpus, i)
        hidden = repackage_hidden(hidden)
        optimizer.zero_grad()
        output, hidden = model(data, hidden)
        loss = criterion(output.flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        # clip_grad_norm_ helps prevent the exploding gradient problem in RNNs / LSTMs
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)  # expect: clip-misplaced
        total_loss += loss.item()
    return total_loss / 6


for epoch in range(2):
    loss = train()
    print(f"| epoch {epoch} | loss {loss:5.2f} | ppl {math.exp(min(loss, 20)):8.2f}")
