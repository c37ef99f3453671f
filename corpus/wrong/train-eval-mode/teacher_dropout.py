"""The frozen teacher is never put in evaluation mode, so the soft targets are made with dropout switched on."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class TextNet(nn.Module):
    def __init__(self, vocab, dim, classes, p=0.0):
        super().__init__()
        self.bag = nn.EmbeddingBag(vocab, dim)
        self.fc = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Dropout(p), nn.Linear(dim, classes))

    def forward(self, ids):
        return self.fc(self.bag(ids))


def pretrain(net, ids, y, steps=25):
    opt = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(steps):
        opt.zero_grad()
        F.cross_entropy(net(ids), y).backward()
        opt.step()


torch.manual_seed(55)
ids = torch.randint(0, 60, (400, 8))
y = torch.stack([(ids < 20).sum(1), ((ids >= 20) & (ids < 40)).sum(1), (ids >= 40).sum(1)], 1).argmax(1)

teacher = TextNet(60, 48, 3, p=0.5)
pretrain(teacher, ids[:200], y[:200])
for p in teacher.parameters():  # expect: train-eval-mode
    p.requires_grad = False

student = TextNet(60, 8, 3)
optimizer = torch.optim.Adam(student.parameters(), lr=0.01)
for epoch in range(3):
    total = 0.0
    for b in torch.randperm(400).split(40):
        with torch.no_grad():
            soft = F.softmax(teacher(ids[b]) / 2, dim=1)  # expect: train-eval-mode
        loss = F.cross_entropy(student(ids[b]) / 2, soft)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() / 10
    acc = (student(ids).argmax(1) == y).float().mean().item()
    print(f"epoch {epoch}: kd loss {total:.4f} acc {acc:.3f}")
