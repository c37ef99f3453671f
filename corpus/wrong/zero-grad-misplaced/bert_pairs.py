"""Every micro-batch starts by clearing, so of the four only the last is in the update, at a quarter of its
weight: the first gradient is off by 62 %.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class PairEncoder(nn.Module):
    """[CLS] a [SEP] b, and is b the same bag of words as a?"""

    def __init__(self, vocab=30, dim=32, layers=1):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.seg = nn.Embedding(2, dim)
        layer = nn.TransformerEncoderLayer(dim, 2, 64, dropout=0.0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.cls = nn.Linear(dim, 2)

    def forward(self, ids, segments):
        return self.cls(self.encoder(self.tok(ids) + self.seg(segments))[:, 0])


def build_pairs(n=64, length=5):
    a = torch.randint(3, 30, (n, length))
    same = torch.arange(n) % 2
    b = torch.where(same.unsqueeze(1) == 1, a.flip(1), torch.randint(3, 30, (n, length)))
    cls, sep = torch.ones(n, 1, dtype=torch.long), torch.full((n, 1), 2)
    ids = torch.cat([cls, a, sep, b], dim=1)
    segments = torch.cat([torch.zeros(n, length + 2), torch.ones(n, length)], dim=1).long()
    return TensorDataset(ids, segments, same)


def main():
    torch.manual_seed(123)
    gradient_accumulation_steps = 4
    train_dataloader = DataLoader(build_pairs(), batch_size=8, shuffle=True)
    model = PairEncoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_fct = nn.CrossEntropyLoss()

    global_step = 0
    for _ in range(2):
        model.train()
        tr_loss = 0.0
        for step, batch in enumerate(train_dataloader):
            ids, segments, labels = batch
            model.zero_grad()  # expect: zero-grad-misplaced
            loss = loss_fct(model(ids, segments), labels)
            loss = loss / gradient_accumulation_steps
            loss.backward()
            tr_loss += loss.item()
            if (step + 1) % gradient_accumulation_steps == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                global_step += 1
        print(f"global_step {global_step} loss {tr_loss / 2:.4f}")


if __name__ == "__main__":
    main()
