"""Sequence reversal with an encoder and a decoder that have an optimizer each. Both are cleared
and both stepped for one common loss."""
import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, LENGTH, HIDDEN = 6, 5, 32
BOS = VOCAB


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, 16)
        self.rnn = nn.GRU(16, HIDDEN, batch_first=True)

    def forward(self, x):
        _, h = self.rnn(self.emb(x))
        return h


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB + 1, 16)
        self.rnn = nn.GRU(16, HIDDEN, batch_first=True)
        self.out = nn.Linear(HIDDEN, VOCAB)

    def forward(self, tokens, h):
        o, h = self.rnn(self.emb(tokens), h)
        return self.out(o), h


def make_batch(n):
    x = torch.randint(0, VOCAB, (n, LENGTH))
    return x, x.flip(1)


def train_step(encoder, decoder, enc_opt, dec_opt, x, y):
    dec_opt.zero_grad()
    enc_opt.zero_grad()
    start = torch.full((len(x), 1), BOS)
    logits, _ = decoder(torch.cat([start, y[:, :-1]], 1), encoder(x))
    loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
    loss.backward()
    enc_opt.step()
    dec_opt.step()
    return loss.item()


@torch.no_grad()
def greedy(encoder, decoder, x):
    h = encoder(x)
    token = torch.full((len(x), 1), BOS)
    out = []
    for _ in range(LENGTH):
        logits, h = decoder(token, h)
        token = logits.argmax(-1)
        out.append(token)
    return torch.cat(out, 1)


def main():
    torch.manual_seed(23)
    encoder, decoder = Encoder(), Decoder()
    enc_opt = torch.optim.SGD(encoder.parameters(), lr=0.2, momentum=0.5)
    dec_opt = torch.optim.SGD(decoder.parameters(), lr=0.2, momentum=0.5)
    for step in range(30):
        x, y = make_batch(64)
        loss = train_step(encoder, decoder, enc_opt, dec_opt, x, y)
        if step % 10 == 0:
            print(f"step {step}: loss {loss:.4f}")
    x, y = make_batch(200)
    print(f"token accuracy {(greedy(encoder, decoder, x) == y).float().mean().item():.3f}")


main()
