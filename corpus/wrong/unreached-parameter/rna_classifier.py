"""The position embedding is created but forward never adds it, so it gets no gradient and the attention model is blind to the order of the letters."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

LETTERS = "ACGU"


class MotifDataset(Dataset):
    """Random RNA; the label says whether 'GA' comes before 'CU'."""

    def __init__(self, n, length=16, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.seqs = torch.randint(0, 4, (n, length), generator=g)
        self.labels = torch.randint(0, 2, (n,), generator=g)
        for s, y in zip(self.seqs, self.labels):
            first, second = ((2, 0), (1, 3)) if y else ((1, 3), (2, 0))
            s[3], s[4] = first
            s[11], s[12] = second

    def __len__(self):
        return len(self.seqs)

    def __getitem__(self, i):
        return self.seqs[i], self.labels[i]


class RNAFormer(nn.Module):
    def __init__(self, dim=16, length=16, depth=2):
        super().__init__()
        self.letter_embedding = nn.Embedding(len(LETTERS), dim)
        self.position_embedding = nn.Embedding(length, dim)  # expect: unreached-parameter
        block = nn.TransformerEncoderLayer(
            dim, 2, dim_feedforward=32, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 2)

    def forward(self, seq):
        h = self.letter_embedding(seq)  # expect: unreached-parameter
        h = self.norm(self.blocks(h))
        return self.head(h.mean(dim=1))


def run_epoch(model, loader, criterion, optimizer=None):
    training = optimizer is not None
    model.train(training)
    total, hits, n = 0.0, 0, 0
    with torch.set_grad_enabled(training):
        for seq, label in loader:
            logits = model(seq)
            loss = criterion(logits, label)
            if training:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total += loss.item() * len(seq)
            hits += (logits.argmax(1) == label).sum().item()
            n += len(seq)
    return total / n, hits / n


def main():
    torch.manual_seed(1)
    torch.set_num_threads(1)
    train_loader = DataLoader(MotifDataset(160, seed=1), batch_size=20, shuffle=True)
    valid_loader = DataLoader(MotifDataset(60, seed=2), batch_size=60)
    model = RNAFormer()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(2):
        train_loss, _ = run_epoch(model, train_loader, criterion, optimizer)
        valid_loss, valid_acc = run_epoch(model, valid_loader, criterion)
        print(f"epoch {epoch}: train {train_loss:.4f} valid {valid_loss:.4f} acc {valid_acc:.3f}")


if __name__ == "__main__":
    main()
