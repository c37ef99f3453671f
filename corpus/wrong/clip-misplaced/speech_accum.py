"""The gradient norm is clipped after every micro-batch of an accumulation window, which rescales the partial sums instead of the gradient that is applied."""

import argparse
import itertools

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR


def get_args():
    ap = argparse.ArgumentParser()
    ap.add_argument("--updates-per-epoch", type=int, default=5)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--grad-accum", type=int, default=3)
    ap.add_argument("--clip", type=float, default=0.3)
    ap.add_argument("--lr", type=float, default=0.3)
    return ap.parse_args()


def utterances(batch, frames=14, mels=10, words=4):
    """Endless stream of noisy mel features with the word that was spoken."""
    prototypes = torch.randn(words, 1, mels)
    while True:
        word = torch.randint(0, words, (batch,))
        envelope = torch.sin(torch.linspace(0, 3.14, frames)).view(1, frames, 1)
        yield prototypes[word] * envelope + 0.7 * torch.randn(batch, frames, mels), word


class KeywordSpotter(nn.Module):
    def __init__(self, mels=10, words=4):
        super().__init__()
        self.rnn = nn.GRU(mels, 20, batch_first=True, bidirectional=True)
        self.score = nn.Linear(40, 1)
        self.out = nn.Linear(40, words)

    def forward(self, feats):
        h, _ = self.rnn(feats)
        weights = self.score(h).softmax(dim=1)
        return self.out((weights * h).sum(dim=1))


def accumulate(model, criterion, stream, args):
    total = 0.0
    for feats, word in itertools.islice(stream, args.grad_accum):
        loss = criterion(model(feats), word) / args.grad_accum
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)  # expect: clip-misplaced
        total += loss.item()
    return total


def main():
    args = get_args()
    torch.manual_seed(15)
    torch.set_num_threads(1)
    stream = utterances(batch=8)
    model = KeywordSpotter()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    scheduler = CosineAnnealingLR(optimizer, T_max=args.epochs * args.updates_per_epoch)
    for epoch in range(args.epochs):
        losses = []
        for _ in range(args.updates_per_epoch):
            optimizer.zero_grad()
            losses.append(accumulate(model, criterion, stream, args))
            optimizer.step()
            scheduler.step()
        print(f"epoch {epoch} loss {sum(losses) / len(losses):.4f}")


if __name__ == "__main__":
    main()
