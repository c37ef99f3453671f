"""Four micro-batch means are summed into .grad without being divided by four, so each SGD update is four times what the learning rate was chosen for."""

import math

import torch
import torch.nn as nn

torch.manual_seed(21)
torch.set_num_threads(1)

VOCAB, TAGS, LENGTH = 30, 5, 12
EFFECTIVE_BATCH = 32
MICRO_BATCH = 8
ACCUM_STEPS = EFFECTIVE_BATCH // MICRO_BATCH


class PositionalEncoding(nn.Module):
    def __init__(self, dim, max_len=64):
        super().__init__()
        pos = torch.arange(max_len).unsqueeze(1)
        div = torch.exp(torch.arange(0, dim, 2) * (-math.log(10000.0) / dim))
        pe = torch.zeros(max_len, dim)
        pe[:, 0::2] = torch.sin(pos * div)
        pe[:, 1::2] = torch.cos(pos * div)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return x + self.pe[: x.size(1)]


class Tagger(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.pos = PositionalEncoding(dim)
        layer = nn.TransformerEncoderLayer(dim, nhead=2, dim_feedforward=32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=1)
        self.out = nn.Linear(dim, TAGS)

    def forward(self, ids):
        return self.out(self.encoder(self.pos(self.embed(ids))))


def build_corpus(n):
    ids = torch.randint(0, VOCAB, (n, LENGTH))
    previous = torch.roll(ids, 1, dims=1)
    tags = (ids + (previous > VOCAB // 2).long()) % TAGS
    return ids, tags


def train(model, ids, tags, epochs=2):
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(epochs):
        model.train()
        order = torch.randperm(len(ids))
        optimizer.zero_grad()
        for micro, idx in enumerate(order.split(MICRO_BATCH)):
            logits = model(ids[idx])
            criterion(
                logits.reshape(-1, TAGS), tags[idx].reshape(-1)
            ).backward()  # expect: accumulation-scaling
            if (micro + 1) % ACCUM_STEPS == 0:
                optimizer.step()
                optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            hit = (model(ids).argmax(-1) == tags).float().mean()
        print(f"epoch {epoch}: token accuracy {hit.item():.3f}")


if __name__ == "__main__":
    train(Tagger(), *build_corpus(128))
