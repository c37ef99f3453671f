"""Looks like a sum that nothing divides: the sum of each micro-batch is divided by the valid tokens of the
whole window, counted before the first backward."""

import argparse
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence

PAD = -100


class TinyLM(nn.Module):
    def __init__(self, vocab=24, dim=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.pos = nn.Embedding(32, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        t = ids.shape[1]
        h = self.embed(ids) + self.pos(torch.arange(t))
        mask = nn.Transformer.generate_square_subsequent_mask(t)
        return self.head(self.blocks(h, mask=mask, is_causal=True))


def make_sentences(n):
    out = []
    for _ in range(n):
        start, step, length = random.randrange(24), random.randrange(1, 4), random.randrange(4, 20)
        out.append(torch.tensor([(start + step * i) % 24 for i in range(length)]))
    return out


def collate(sentences):
    ids = pad_sequence([s[:-1] for s in sentences], batch_first=True)
    targets = pad_sequence([s[1:] for s in sentences], batch_first=True, padding_value=PAD)
    return ids, targets


def train_window(model, optimizer, window):
    n_tokens = sum((targets != PAD).sum() for _, targets in window)
    total = 0.0
    for ids, targets in window:
        logits = model(ids)
        nll = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD, reduction="sum")
        (nll / n_tokens).backward()
        total += nll.item()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return total / n_tokens.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--accumulate", type=int, default=3)
    args = parser.parse_args()
    random.seed(1)
    torch.manual_seed(1)
    sentences = make_sentences(56)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        random.shuffle(sentences)
        batches = [collate(sentences[i : i + 8]) for i in range(0, len(sentences), 8)]
        for i in range(0, len(batches), args.accumulate):
            loss = train_window(model, optimizer, batches[i : i + args.accumulate])
        print(f"epoch {epoch} loss/token {loss:.3f}")


if __name__ == "__main__":
    main()
