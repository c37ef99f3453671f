"""The loss is a sum over the batch and is not divided; the learning rate is chosen for it, and all batches have the same
size."""

import numpy as np
import torch

np.random.seed(2)
torch.manual_seed(2)

n_users, n_items, k = 30, 40, 5
R = torch.tensor(np.random.randn(n_users, k) @ np.random.randn(k, n_items), dtype=torch.float32)
observed = torch.rand_like(R) < 0.4
rows, cols = observed.nonzero(as_tuple=True)
rows, cols = rows[:480], cols[:480]

P = torch.nn.Embedding(n_users, k)
Q = torch.nn.Embedding(n_items, k)
opt = torch.optim.SGD([P.weight, Q.weight], lr=0.01)
lam = 0.02

for epoch in range(4):
    sse = 0.0
    for b in torch.randperm(480).view(-1, 48):
        p, q, r = P(rows[b]), Q(cols[b]), R[rows[b], cols[b]]
        err = (r - (p * q).sum(1)).pow(2).sum()
        loss = err + lam * (p.pow(2).sum() + q.pow(2).sum())
        opt.zero_grad()
        loss.backward()
        opt.step()
        sse += err.item()
    print(f"epoch {epoch} rmse {(sse / 480) ** 0.5:.4f}")
