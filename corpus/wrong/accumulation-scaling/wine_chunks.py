"""The batch is cut in `n_chunks` pieces, but each mean loss is divided by the size of a piece (16) instead of their
number (4), so that the gradient is a fourth of that of the batch."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_wine
from sklearn.preprocessing import StandardScaler

torch.manual_seed(0)

data = load_wine()
X = torch.as_tensor(StandardScaler().fit_transform(data.data), dtype=torch.float32)[:128]
y = torch.as_tensor(data.target)[:128]

batch_size = 64
micro_batch_size = 16
n_chunks = batch_size // micro_batch_size

net = torch.nn.Sequential(torch.nn.Linear(13, 24), torch.nn.ReLU(), torch.nn.Linear(24, 3))
opt = torch.optim.SGD(net.parameters(), lr=0.2)

for epoch in range(8):
    perm = torch.randperm(len(X))
    total = 0.0
    for start in range(0, len(X), batch_size):
        xb = X[perm[start : start + batch_size]]
        yb = y[perm[start : start + batch_size]]
        opt.zero_grad()
        for xc, yc in zip(xb.chunk(n_chunks), yb.chunk(n_chunks)):
            loss = F.cross_entropy(net(xc), yc)
            (loss / micro_batch_size).backward()  # expect: accumulation-scaling
            total += loss.item() * len(xc)
        opt.step()
    if epoch % 4 == 3:
        print(f"epoch {epoch:2d} nll {total / len(X):.4f}")
