"""Seven micro-batches an epoch with windows of three: the seventh one's gradient stays in .grad and is mixed into the first window of the next epoch."""

# %% imports / setup
import random

import torch
import torch.nn as nn

random.seed(3)
torch.manual_seed(3)
torch.set_num_threads(1)

POSITIVE = "good great lovely superb happy fine nice".split()
NEGATIVE = "bad awful ugly boring sad poor dull".split()
NEUTRAL = "the a movie plot actor scene was and it film".split()
vocab = {w: i + 1 for i, w in enumerate(POSITIVE + NEGATIVE + NEUTRAL)}


# %% data
def make_review():
    label = random.random() < 0.5
    strong = POSITIVE if label else NEGATIVE
    words = [random.choice(strong) if random.random() < 0.4 else random.choice(NEUTRAL) for _ in range(10)]
    return [vocab[w] for w in words], float(label)


reviews = [make_review() for _ in range(84)]
tokens = torch.tensor([r[0] for r in reviews])
targets = torch.tensor([r[1] for r in reviews])
BATCH = 12
N_ACC = 3


# %% model
class SentimentGRU(nn.Module):
    def __init__(self, n_vocab):
        super().__init__()
        self.embedding = nn.Embedding(n_vocab, 12)
        self.gru = nn.GRU(12, 16, batch_first=True)
        self.dropout = nn.Dropout(0.1)
        self.classifier = nn.Linear(16, 1)

    def forward(self, t):
        _, h = self.gru(self.embedding(t))
        return self.classifier(self.dropout(h[-1])).squeeze(-1)


net = SentimentGRU(len(vocab) + 1)
opt = torch.optim.RMSprop(net.parameters(), lr=5e-3)
bce = nn.BCEWithLogitsLoss()


# %% training
def run_epoch():
    total = 0.0
    order = torch.randperm(len(tokens))
    for step, idx in enumerate(order.split(BATCH), start=1):
        loss = bce(net(tokens[idx]), targets[idx])
        (loss / N_ACC).backward()
        total += loss.item() * len(idx)
        if step % N_ACC == 0:  # expect: accumulation-window
            opt.step()
            opt.zero_grad()
    return total / len(tokens)


def accuracy():
    net.eval()
    with torch.no_grad():
        acc = ((net(tokens) > 0).float() == targets).float().mean().item()
    net.train()
    return acc


for ep in range(3):
    avg = run_epoch()
    print("epoch", ep, "loss %.4f" % avg, "acc %.3f" % accuracy())
