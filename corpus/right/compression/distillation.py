"""The loss has two terms on different scales (T * T), 'batchmean' rather than 'mean', and a teacher that runs without
gradients in evaluation mode."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def make(width, dropout):
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 4))


def train(model, loader, epochs, lr, loss_fn):
    opt = torch.optim.Adam(model.parameters(), lr=lr)
    model.train()
    for _ in range(epochs):
        for xb, yb in loader:
            loss = loss_fn(model(xb), xb, yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
    return loss.item()


torch.manual_seed(0)
x = torch.randn(320, 8)
y = x[:, :4].abs().argmax(1)
loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)

teacher = make(96, dropout=0.2)
train(teacher, loader, 4, 1e-2, lambda out, xb, yb: F.cross_entropy(out, yb))
teacher.eval()
T, alpha = 3.0, 0.6


def kd(out, xb, yb):
    with torch.no_grad():
        soft = F.softmax(teacher(xb) / T, dim=1)
    distill = F.kl_div(F.log_softmax(out / T, dim=1), soft, reduction="batchmean") * T * T
    return alpha * distill + (1 - alpha) * F.cross_entropy(out, yb)


student = make(12, dropout=0.0)
print("student loss", round(train(student, loader, 3, 1e-2, kd), 4))
