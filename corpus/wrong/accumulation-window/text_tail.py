"""18 micro-batches are accumulated by fours, and the gradients of the last two of each epoch are cleared
at the start of the next epoch (and lost at the end) without a step."""

import argparse
import random

import torch
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--grad-accum", type=int, default=4)
parser.add_argument("--lr", type=float, default=5e-3)
args = parser.parse_args()

random.seed(1)
torch.manual_seed(1)

POS = "good great lovely superb warm funny".split()
NEG = "bad awful dull boring cold weak".split()
FILL = "the film was a with of and plot actor scene".split()
vocab = {w: i + 1 for i, w in enumerate(POS + NEG + FILL)}


def make_review(label):
    words = random.choices(POS if label else NEG, k=3) + random.choices(FILL, k=9)
    random.shuffle(words)
    return [vocab[w] for w in words]


reviews = [(make_review(i % 2), i % 2) for i in range(144)]


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.EmbeddingBag(len(vocab) + 1, 16)
        self.out = nn.Linear(16, 2)

    def forward(self, ids):
        return self.out(self.emb(ids))


model = Classifier()
optim = torch.optim.Adam(model.parameters(), lr=args.lr)
ce = nn.CrossEntropyLoss()

for epoch in range(args.epochs):
    random.shuffle(reviews)
    optim.zero_grad()
    hits = 0
    n_micro = len(reviews) // args.batch_size
    for i in range(n_micro):
        chunk = reviews[i * args.batch_size : (i + 1) * args.batch_size]
        ids = torch.tensor([r for r, _ in chunk])
        labels = torch.tensor([lab for _, lab in chunk])
        logits = model(ids)
        (ce(logits, labels) / args.grad_accum).backward()
        hits += (logits.argmax(-1) == labels).sum().item()
        if (i + 1) % args.grad_accum == 0:  # expect: accumulation-window
            optim.step()
            optim.zero_grad()
    print("epoch", epoch, "train acc", round(hits / len(reviews), 3))
