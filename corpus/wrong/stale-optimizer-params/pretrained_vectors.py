"""The embedding's weight is re-wrapped as a new parameter to take the pretrained vectors after the optimizer was made,
so the vectors are never tuned."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class TextCNN(nn.Module):
    def __init__(self, vocab_size, dim, n_filters=12, n_classes=2):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, dim)
        self.convs = nn.ModuleList(nn.Conv1d(dim, n_filters, k) for k in (2, 3))
        self.fc = nn.Linear(2 * n_filters, n_classes)

    def forward(self, ids):
        e = self.embedding(ids).transpose(1, 2)
        return self.fc(torch.cat([F.relu(c(e)).max(2).values for c in self.convs], 1))

    def load_vectors(self, vectors):
        self.embedding.weight = nn.Parameter(vectors.clone())  # expect: stale-optimizer-params


def batches(ids, y, size):
    perm = torch.randperm(len(ids))
    return ((ids[p], y[p]) for p in perm.split(size))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dim", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.01)
    args = parser.parse_args()

    torch.manual_seed(44)
    ids = torch.randint(0, 30, (300, 7))
    y = ((ids[:, :-1] == 4) & (ids[:, 1:] < 12)).any(1) | (ids == 9).any(1)
    y = y.long()
    vectors = torch.randn(30, args.dim) * 0.3

    model = TextCNN(30, args.dim)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)  # expect: stale-optimizer-params
    model.load_vectors(vectors)
    for epoch in range(args.epochs):
        losses = []
        for xb, yb in batches(ids, y, 30):
            loss = F.cross_entropy(model(xb), yb)
            model.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch} loss {sum(losses) / len(losses):.4f}")


if __name__ == "__main__":
    main()
