"""A masked language model averages the losses of all words, and those of the words that aren't masked are zero."""

import torch
import torch.nn as nn

torch.manual_seed(3)
WORDS, MASK, LENGTH = 20, 20, 12


def masked(sentences):
    hidden = torch.rand(sentences.shape) < torch.rand(len(sentences), 1) * 0.4
    hidden[:, 0] = True
    return sentences.masked_fill(hidden, MASK), sentences.masked_fill(~hidden, -100)


class Encoder(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.words = nn.Embedding(WORDS + 1, dim)
        self.gru = nn.GRU(dim, dim, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * dim, WORDS)

    def forward(self, words):
        return self.out(self.gru(self.words(words))[0])


model = Encoder()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
criterion = nn.CrossEntropyLoss(reduction="none")
starts = torch.randint(WORDS, (96, 1))
sentences = (starts + torch.arange(LENGTH)) % WORDS
for epoch in range(2):
    for batch in sentences[torch.randperm(96)].split(12):
        inputs, labels = masked(batch)
        losses = criterion(model(inputs).flatten(0, 1), labels.flatten())
        loss = losses.mean()  # expect: loss-reduction
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
