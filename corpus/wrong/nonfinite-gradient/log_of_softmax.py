"""The log of the softmax is taken in two steps; with logits this large the softmax underflows to 0, the loss is
infinite and the gradients are NaN."""

import torch
import torch.nn as nn
from sklearn.datasets import load_wine

torch.manual_seed(0)
wine = load_wine()
X = torch.tensor(wine.data, dtype=torch.float32)
Y = torch.tensor(wine.target)

# model
w1 = nn.Linear(13, 20)
w2 = nn.Linear(20, 3)
params = list(w1.parameters()) + list(w2.parameters())
opt = torch.optim.SGD(params, lr=1e-2)

perm = torch.randperm(len(X))
train, test = perm[:144], perm[144:]

for epoch in range(2):
    total_loss = 0.0
    for i in range(0, 144, 16):
        ix = train[i : i + 16]
        h = torch.relu(w1(X[ix]))
        probs = torch.softmax(w2(h), dim=1)
        loss = -torch.log(probs)[torch.arange(len(ix)), Y[ix]].mean()  # expect: nonfinite-gradient
        opt.zero_grad()
        loss.backward()
        opt.step()
        total_loss += loss.item()
    with torch.no_grad():
        acc = (w2(torch.relu(w1(X[test]))).argmax(1) == Y[test]).float().mean()
    print(f"epoch {epoch}  loss {total_loss / 9:.3f}  acc {acc:.2f}")
