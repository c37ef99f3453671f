"""Looks like a misplaced zero_grad: it stands after the forward pass, but before the backward."""

import torch
from torch import nn

torch.manual_seed(0)

# names -> languages, character level
names = {
    "it": ["rossi", "bianchi", "esposito", "romano", "colombo", "ricci", "marino", "greco", "conti", "gallo"],
    "de": [
        "schmidt",
        "schneider",
        "fischer",
        "weber",
        "schulz",
        "becker",
        "hoffmann",
        "koch",
        "bauer",
        "wolf",
    ],
    "fr": [
        "dubois",
        "moreau",
        "laurent",
        "lefebvre",
        "leroy",
        "girard",
        "bonnet",
        "fournier",
        "rousseau",
        "blanc",
    ],
}
alphabet = "abcdefghijklmnopqrstuvwxyz"
pairs = [(w, i) for i, ws in enumerate(names.values()) for w in ws]


def encode(words, width=10):
    ids = torch.zeros(len(words), width, dtype=torch.long)
    for r, w in enumerate(words):
        for c, ch in enumerate(w[:width]):
            ids[r, c] = alphabet.index(ch) + 1
    return ids


class NameRNN(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.emb = nn.Embedding(27, 16, padding_idx=0)
        self.gru = nn.GRU(16, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 3)

    def forward(self, ids):
        states, _ = self.gru(self.emb(ids))
        last = (ids > 0).sum(1) - 1
        return self.out(states[torch.arange(len(ids)), last])


rnn = NameRNN()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(rnn.parameters(), lr=0.01)

for epoch in range(3):
    perm = torch.randperm(len(pairs)).tolist()
    for k in range(0, len(pairs), 10):
        batch = [pairs[j] for j in perm[k : k + 10]]
        inputs = encode([w for w, _ in batch])
        targets = torch.tensor([t for _, t in batch])

        # Forward pass
        outputs = rnn(inputs)
        loss = criterion(outputs, targets)

        # Backward and optimize
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("Epoch [%d/3], Loss: %.4f" % (epoch + 1, loss.item()))
