"""The momentum optimizer is built inside the function that does one step, so each step starts without momentum."""

import random

import torch
import torch.nn.functional as F

HP = dict(lr=0.02, momentum=0.95, nesterov=True)


class SkipGram(torch.nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.center = torch.nn.Embedding(vocab, dim)
        self.context = torch.nn.Embedding(vocab, dim)

    def loss(self, c, pos, neg):
        v = self.center(c)
        p = (v * self.context(pos)).sum(-1)
        n = torch.einsum("bd,bkd->bk", v, self.context(neg))
        return -(F.logsigmoid(p) + F.logsigmoid(-n).sum(-1)).mean()


def pairs_from(text, window=2):
    words = text.split()
    vocab = sorted(set(words))
    ids = [vocab.index(w) for w in words]
    out = []
    for i, c in enumerate(ids):
        for j in range(max(0, i - window), min(len(ids), i + window + 1)):
            if i != j:
                out.append((c, ids[j]))
    return out, len(vocab)


def update(model, batch, n_vocab):
    opt = torch.optim.SGD(model.parameters(), **HP)  # expect: optimizer-state-reset
    c, pos = (torch.tensor(t) for t in zip(*batch))
    neg = torch.randint(0, n_vocab, (len(batch), 3))
    loss = model.loss(c, pos, neg)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()


def main():
    random.seed(0)
    torch.manual_seed(0)
    text = (
        "the king rules the land the queen rules the land a boy walks home a girl walks home the king met a boy "
        * 2
    )
    pairs, n_vocab = pairs_from(text)
    model = SkipGram(n_vocab, 10)
    for epoch in range(3):
        random.shuffle(pairs)
        losses = [update(model, pairs[i : i + 16], n_vocab) for i in range(0, len(pairs), 16)]
        print(f"epoch {epoch}: {sum(losses) / len(losses):.4f}")


main()
