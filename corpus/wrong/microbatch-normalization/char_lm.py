"""Every micro-batch is averaged over its own number of real tokens and then weighted equally, so tokens of short texts count more than tokens of long ones."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

torch.manual_seed(42)
torch.set_num_threads(1)

PAD = 0
ALPHABET = "abcdefghijklmnopqrstuvwxyz "
stoi = {c: i + 1 for i, c in enumerate(ALPHABET)}
IGNORE = -100

TEXTS = [
    "hi",
    "the quick brown fox jumps over the lazy dog",
    "ok",
    "a rose is a rose is a rose",
    "no",
    "to be or not to be that is the question",
    "yes",
    "all work and no play makes jack a dull boy",
    "so",
    "it was the best of times it was the worst of times",
    "go",
    "call me",
    "why",
    "happy families are all alike",
    "run",
    "we few we happy few",
] * 3


class CharLM(nn.Module):
    def __init__(self, n, dim=24):
        super().__init__()
        self.embed = nn.Embedding(n, dim, padding_idx=PAD)
        self.lstm = nn.LSTM(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, n)

    def forward(self, ids):
        out, _ = self.lstm(self.embed(ids))
        return self.head(out)


def encode(text):
    return torch.tensor([stoi[c] for c in text])


def collate(texts):
    seqs = [encode(t) for t in texts]
    inputs = pad_sequence([s[:-1] for s in seqs], batch_first=True, padding_value=PAD)
    labels = pad_sequence([s[1:] for s in seqs], batch_first=True, padding_value=IGNORE)
    return inputs, labels


def micro_loss(model, batch, n_accum):
    inputs, labels = batch
    logits = model(inputs)
    loss = F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORE)
    return loss / n_accum  # expect: microbatch-normalization


def train(n_epochs=2, per_micro=3, n_accum=4):
    model = CharLM(len(stoi) + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(n_epochs):
        order = torch.randperm(len(TEXTS)).tolist()
        micro = [[TEXTS[j] for j in order[k : k + per_micro]] for k in range(0, len(order), per_micro)]
        epoch_loss, updates = 0.0, 0
        for start in range(0, len(micro), n_accum):
            window = [collate(m) for m in micro[start : start + n_accum]]
            optimizer.zero_grad()
            for batch in window:
                loss = micro_loss(model, batch, len(window))
                loss.backward()
                epoch_loss += loss.item()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            updates += 1
        print(f"epoch {epoch} perplexity ~ {torch.tensor(epoch_loss / updates).exp().item():.2f}")
    return model


if __name__ == "__main__":
    train()
