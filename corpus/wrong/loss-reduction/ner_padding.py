"""The per-token losses are masked and then averaged over all positions, padding included, so batches with much padding get a smaller gradient."""

import random

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

random.seed(1)
torch.manual_seed(1)
torch.set_num_threads(1)

TAGS = ["O", "PER", "LOC"]
PEOPLE = ["anna", "bert", "carl", "dora"]
PLACES = ["rome", "oslo", "lima", "kiev"]
OTHER = ["went", "to", "saw", "in", "and", "then", "met", "again", "slowly", "from"]
word_ids = {w: i + 1 for i, w in enumerate(PEOPLE + PLACES + OTHER)}


def tag_of(word):
    return 1 if word in PEOPLE else 2 if word in PLACES else 0


def make_sentence():
    n = random.choice([3, 4, 5, 14, 18])
    words = [random.choice(random.choice([PEOPLE, PLACES, OTHER, OTHER])) for _ in range(n)]
    return torch.tensor([word_ids[w] for w in words]), torch.tensor([tag_of(w) for w in words])


def collate(sentences):
    words, tags = zip(*sentences)
    lengths = torch.tensor([len(w) for w in words])
    words = pad_sequence(words, batch_first=True)
    tags = pad_sequence(tags, batch_first=True)
    mask = (torch.arange(words.size(1)) < lengths[:, None]).float()
    return words, tags, lengths, mask


class BiLSTMTagger(nn.Module):
    def __init__(self, n_words, dim=12, hidden=10):
        super().__init__()
        self.embedding = nn.Embedding(n_words, dim, padding_idx=0)
        self.lstm = nn.LSTM(dim, hidden, batch_first=True, bidirectional=True)
        self.linear = nn.Linear(2 * hidden, len(TAGS))

    def forward(self, words, lengths):
        packed = pack_padded_sequence(self.embedding(words), lengths, batch_first=True, enforce_sorted=False)
        out, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=words.size(1))
        return self.linear(out)


criterion = nn.CrossEntropyLoss(reduction="none")


def compute_loss(model, batch):
    words, tags, lengths, mask = batch
    logits = model(words, lengths)
    per_token = criterion(logits.transpose(1, 2), tags)
    return (per_token * mask).mean()  # expect: loss-reduction


def token_accuracy(model, batch):
    words, tags, lengths, mask = batch
    model.eval()
    with torch.no_grad():
        hit = (model(words, lengths).argmax(-1) == tags).float() * mask
    model.train()
    return (hit.sum() / mask.sum()).item()


sentences = [make_sentence() for _ in range(48)]
val_batch = collate([make_sentence() for _ in range(30)])
model = BiLSTMTagger(len(word_ids) + 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)

for epoch in range(2):
    random.shuffle(sentences)
    losses = []
    for k in range(0, len(sentences), 8):
        optimizer.zero_grad()
        loss = compute_loss(model, collate(sentences[k : k + 8]))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        losses.append(loss.item())
    print(
        f"epoch {epoch} loss {sum(losses) / len(losses):.4f} token acc {token_accuracy(model, val_batch):.3f}"
    )
