"""A ReLU after log_softmax turns all the log-probabilities (which are negative) into zero, and the gradients with them."""

import torch
import torch.nn as nn
import torch.nn.functional as F

names = {
    "it": "rossi russo ferrari bianchi romano gallo costa fontana conti ricci".split(),
    "de": "schmidt schneider fischer weber wagner becker schulz hoffmann koch bauer".split(),
    "jp": "sato suzuki takahashi tanaka watanabe ito yamamoto nakamura kobayashi kato".split(),
}
langs = list(names)
samples = [(n, langs.index(k)) for k, v in names.items() for n in v]
torch.manual_seed(0)


def encode(name):
    return F.one_hot(torch.tensor([ord(c) - 97 for c in name]), 26).float()


class NameRNN(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.hidden = hidden
        self.i2h = nn.Linear(26 + hidden, hidden)
        self.h2o = nn.Linear(hidden, len(langs))

    def forward(self, line):
        h = torch.zeros(1, self.hidden)
        for letter in line:
            h = torch.tanh(self.i2h(torch.cat([letter[None], h], 1)))
        return F.relu(F.log_softmax(self.h2o(h), dim=1))  # expect: zero-gradient


rnn = NameRNN()
opt = torch.optim.SGD(rnn.parameters(), lr=0.05, momentum=0.9)
for epoch in range(3):
    right = 0
    for k in torch.randperm(len(samples)).tolist():
        name, lang = samples[k]
        out = rnn(encode(name))
        loss = F.nll_loss(out, torch.tensor([lang]))
        opt.zero_grad()
        loss.backward()
        opt.step()
        right += int(out.argmax(1).item() == lang)
    print(f"epoch {epoch}: {right}/{len(samples)} right, loss {loss.item():.3f}")
