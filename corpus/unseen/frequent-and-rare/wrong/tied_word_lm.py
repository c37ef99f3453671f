"""Word model with tied weights. Only the storage of the output weights is shared; there are two
parameters, each with its own gradient and Adam state, that are both written into one tensor."""
import torch
import torch.nn as nn
import torch.nn.functional as F

TEXT = (
    "in the morning the old man walks to the sea and looks at the boats . "
    "in the evening the old man walks back from the sea and sleeps . "
    "the boats leave in the morning and come back in the evening . "
    "the sea is quiet in the morning and the old man is quiet too . "
)


class WordLM(nn.Module):
    def __init__(self, vocab, dim=24):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.conv = nn.Conv1d(dim, dim, 3)
        self.decoder = nn.Linear(dim, vocab)
        nn.init.normal_(self.embed.weight, std=0.2)
        self.tie_weights()

    def tie_weights(self):
        self.decoder.weight.data = self.embed.weight.data  # expect: storage tied, not the parameter

    def forward(self, tokens):
        h = self.embed(tokens).transpose(1, 2)
        h = F.pad(h, (2, 0))
        h = torch.tanh(self.conv(h)).transpose(1, 2)
        return self.decoder(h)


class Corpus:
    def __init__(self, text, bptt):
        words = text.split()
        self.itos = sorted(set(words))
        stoi = {w: i for i, w in enumerate(self.itos)}
        ids = torch.tensor([stoi[w] for w in words])
        n = (len(ids) - 1) // bptt * bptt
        self.x = ids[:n].view(-1, bptt)
        self.y = ids[1:n + 1].view(-1, bptt)

    def __len__(self):
        return len(self.itos)


def train(corpus, epochs=6, lr=1e-2):
    model = WordLM(len(corpus))
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for epoch in range(epochs):
        total = 0.0
        for rows in torch.randperm(len(corpus.x)).split(2):
            logits = model(corpus.x[rows])
            loss = F.cross_entropy(logits.flatten(0, 1), corpus.y[rows].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows)
        print(f"epoch {epoch}: perplexity {torch.tensor(total / len(corpus.x)).exp().item():.2f}")
    return model


if __name__ == "__main__":
    torch.manual_seed(99)
    train(Corpus(TEXT, bptt=7))
