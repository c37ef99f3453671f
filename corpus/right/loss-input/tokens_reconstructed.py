"""Targets equal the input in autoencoders: recurrent, bidirectional, with attention to all tokens, and with a pooled code."""

import torch
import torch.nn.functional as F
from torch import nn

TOKENS, LENGTH, WIDTH = 15, 9, 12


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.words = nn.Embedding(TOKENS, WIDTH)
        self.encoder, self.decoder = (kind(WIDTH, WIDTH, batch_first=True) for _ in range(2))
        self.scores = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens):
        state = self.encoder(self.words(tokens))[1]
        code = (state[0] if isinstance(state, tuple) else state)[-1]
        return self.scores(self.decoder(code[:, None].expand(-1, LENGTH, -1))[0])


class Handed(Recurrent):
    def forward(self, tokens):
        words = self.words(tokens)
        state = self.encoder(words)[1]
        return self.scores(self.decoder(torch.ones_like(words), state)[0])


class BothWays(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.words = nn.Embedding(TOKENS, WIDTH)
        self.layers = kind(WIDTH, WIDTH, batch_first=True, bidirectional=True)
        self.scores = nn.Linear(2 * WIDTH, TOKENS)

    def forward(self, tokens):
        return self.scores(self.layers(self.words(tokens))[0])


class Backwards(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.cell = nn.Embedding(TOKENS, WIDTH), nn.GRUCell(WIDTH, WIDTH)
        self.scores = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens):
        words, state, states = self.words(tokens), torch.zeros(len(tokens), WIDTH), []
        for place in reversed(range(LENGTH)):
            state = self.cell(words[:, place], state)
            states.append(state)
        return self.scores(torch.stack(states, 1))


class Attention(nn.Module):
    def __init__(self, causal):
        super().__init__()
        self.words = nn.Embedding(TOKENS, WIDTH)
        self.whole = None if causal else nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.earlier = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.scores = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens):
        h = self.words(tokens)
        h = h + (
            h.mean(1, keepdim=True) if self.whole is None else self.whole(h, h, h, need_weights=False)[0]
        )
        later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        return self.scores(h + self.earlier(h, h, h, attn_mask=later, need_weights=False)[0])


def train(model):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(4):
        tokens = torch.randint(TOKENS, (6, LENGTH))
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


torch.manual_seed(0)
losses = [train(Recurrent(nn.LSTM))]
losses += [train(Recurrent(nn.GRU))]
losses += [train(Recurrent(nn.RNN))]
losses += [train(Handed(nn.LSTM))]
losses += [train(Handed(nn.GRU))]
losses += [train(Handed(nn.RNN))]
losses += [train(BothWays(nn.LSTM))]
losses += [train(BothWays(nn.GRU))]
losses += [train(Backwards())]
losses += [train(Attention(causal=True))]
losses += [train(Attention(causal=False))]
print(losses)
