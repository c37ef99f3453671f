"""Looks like an eval mode that stays: evaluation runs in the middle of an epoch under a decorator, and the
loop calls train() again right after it; the ragged last batch is dropped by the loader."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset, random_split

eval_interval, batch_size, epochs = 4, 32, 2
torch.manual_seed(1)

images, targets = load_digits(return_X_y=True)
dataset = TensorDataset(torch.tensor(images[:400], dtype=torch.float32) / 16, torch.tensor(targets[:400]))
train_set, val_set = random_split(dataset, [300, 100])
train_loader = DataLoader(train_set, batch_size=batch_size, shuffle=True, drop_last=True)
val_loader = DataLoader(val_set, batch_size=100)

model = nn.Sequential(nn.Linear(64, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Dropout(0.2), nn.Linear(40, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)


@torch.no_grad()
def estimate_loss():
    out = {}
    model.eval()
    for split, loader in (("train", train_loader), ("val", val_loader)):
        out[split] = torch.stack([F.cross_entropy(model(x), y) for x, y in loader]).mean()
    model.train()
    return out


model.train()
it = 0
for epoch in range(epochs):
    for x, y in train_loader:
        if it % eval_interval == 0:
            losses = estimate_loss()
            print(f"step {it}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        it += 1
