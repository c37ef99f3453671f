"""Topic classifier that is to fine-tune ready-made word vectors. from_pretrained freezes them by
default, so they never change."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

DOCS = [
    ("the striker scored two goals in the final match", 0),
    ("coach praised the defence after the match", 0),
    ("the league season ends with a close final", 0),
    ("the bank raised interest rates again", 1),
    ("shares fell as the market feared inflation", 1),
    ("investors sold shares after the bank report", 1),
    ("new telescope found a distant planet", 2),
    ("researchers measured light from the planet", 2),
    ("the probe sent pictures of the distant moon", 2),
]


def vocabulary(docs):
    words = sorted({w for text, _ in docs for w in text.split()})
    return {w: i for i, w in enumerate(words)}


def word_vectors(n_words, dim, seed):
    rng = np.random.default_rng(seed)
    return torch.tensor(rng.normal(0, 0.3, (n_words, dim)), dtype=torch.float32)


class BagClassifier(nn.Module):
    def __init__(self, vectors, n_classes, hidden=12):
        super().__init__()
        self.embedding = nn.EmbeddingBag.from_pretrained(vectors, mode="mean")  # expect: from_pretrained freezes
        self.fc = nn.Sequential(nn.Linear(vectors.size(1), hidden), nn.ReLU(), nn.Linear(hidden, n_classes))

    def forward(self, tokens, offsets):
        return self.fc(self.embedding(tokens, offsets))


def to_batch(docs, stoi):
    ids = [torch.tensor([stoi[w] for w in text.split()]) for text, _ in docs]
    offsets = torch.tensor([0] + [len(i) for i in ids[:-1]]).cumsum(0)
    return torch.cat(ids), offsets, torch.tensor([c for _, c in docs])


def main():
    torch.manual_seed(15)
    stoi = vocabulary(DOCS)
    model = BagClassifier(word_vectors(len(stoi), 16, seed=15), n_classes=3)
    optimizer = torch.optim.Adam([
        {"params": model.embedding.parameters(), "lr": 5e-3},
        {"params": model.fc.parameters(), "lr": 1e-2},
    ])
    g = torch.Generator().manual_seed(15)
    for step in range(30):
        pick = torch.randperm(len(DOCS), generator=g)[:6]
        tokens, offsets, labels = to_batch([DOCS[i] for i in pick], stoi)
        loss = F.cross_entropy(model(tokens, offsets), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step:2d}  loss {loss.item():.4f}")
    tokens, offsets, labels = to_batch(DOCS, stoi)
    with torch.no_grad():
        acc = (model(tokens, offsets).argmax(1) == labels).float().mean().item()
    print(f"training accuracy {acc:.2f}")


main()
