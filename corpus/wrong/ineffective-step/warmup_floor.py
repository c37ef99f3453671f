"""The warm-up factor is an integer division, 0 during the whole of the run, so every step is taken with a rate of
zero."""

import torch
import torch.nn as nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
WARMUP = 100
EPOCHS = 3


class SeqClassifier(nn.Module):
    def __init__(self, n_feat, hidden, n_classes):
        super().__init__()
        self.gru = nn.GRU(n_feat, hidden, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.fc = nn.Linear(hidden, n_classes)

    def forward(self, x):
        out, _ = self.gru(x)
        return self.fc(self.drop(out[:, -1]))


x = torch.randn(256, 10, 3)
y = (x[..., 0].sum(1) > x[..., 1].sum(1)).long()
dl = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True, drop_last=True)

model = SeqClassifier(3, 16, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scheduler = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) // WARMUP))  # expect: ineffective-step

for epoch in range(EPOCHS):
    model.train()
    losses = []
    for xb, yb in dl:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(xb), yb)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    print(f"epoch {epoch}: {sum(losses) / len(losses):.4f}")
