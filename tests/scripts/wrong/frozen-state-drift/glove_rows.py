"""A hook zeroes the gradients of the pretrained embedding rows to keep them fixed, but AdamW's weight decay shrinks those rows in every step all the same."""

import torch
import torch.nn as nn

torch.manual_seed(83)
torch.set_num_threads(1)

N_PRETRAINED, N_NEW, DIM = 30, 6, 10
N_WORDS = N_PRETRAINED + N_NEW


# --- pretrained vectors and toy corpus ----------------------------------
glove = torch.randn(N_PRETRAINED, DIM)
polarity = torch.cat([glove[:, 0], torch.tensor([2.0, -2.0, 1.5, -1.5, 1.0, -1.0])])


def make_sentences(n, length=7):
    words = torch.randint(0, N_WORDS, (n, length))
    return words, (polarity[words].sum(1) > 0).float()


# --- model --------------------------------------------------------------
class WordAverager(nn.Module):
    def __init__(self, vectors, n_new):
        super().__init__()
        n_old, dim = vectors.shape
        self.embedding = nn.Embedding(n_old + n_new, dim)
        with torch.no_grad():
            self.embedding.weight[:n_old] = vectors
        trainable = torch.zeros(n_old + n_new, 1)
        trainable[n_old:] = 1.0
        self.register_buffer("trainable_rows", trainable)
        self.embedding.weight.register_hook(lambda grad: grad * self.trainable_rows)
        self.mlp = nn.Sequential(nn.Linear(dim, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, words):
        return self.mlp(self.embedding(words).mean(dim=1)).squeeze(1)


# --- training -----------------------------------------------------------
words, labels = make_sentences(240)
val_words, val_labels = make_sentences(80)

model = WordAverager(glove, N_NEW)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2, weight_decay=0.1)  # expect: frozen-state-drift
bce = nn.BCEWithLogitsLoss()

for epoch in range(1, 4):
    model.train()
    epoch_loss = 0.0
    for idx in torch.randperm(len(words)).split(30):
        optimizer.zero_grad()
        loss = bce(model(words[idx]), labels[idx])
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item() * len(idx)
    model.eval()
    with torch.no_grad():
        acc = ((model(val_words) > 0).float() == val_labels).float().mean().item()
    print(f"epoch {epoch}: loss {epoch_loss / len(words):.4f}, val acc {acc:.3f}")
