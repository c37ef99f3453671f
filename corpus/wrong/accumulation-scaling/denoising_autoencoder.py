"""Each sum of squares is divided by its own micro-batch although four are added up to one batch: the first
gradient is 4.0 times too large, and the weights move 2.6 times as far.
"""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(99)

N, DIM = 240, 20
BATCH, MICRO = 80, 20

basis = torch.randn(4, DIM)
clean = torch.randn(N, 4) @ basis
noisy = clean + 0.3 * torch.randn(N, DIM)


class DAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(DIM, 12)
        self.dec = nn.Linear(12, DIM)

    def forward(self, x):
        return self.dec(torch.tanh(self.enc(x)))


def batch_gradients(model, inputs, targets):
    """Back-propagates a batch piece by piece and returns its summed error."""
    error = 0.0
    for j in range(0, len(inputs), MICRO):
        xb, tb = inputs[j : j + MICRO], targets[j : j + MICRO]
        sq = F.mse_loss(model(xb), tb, reduction="sum")
        loss = sq / xb.size(0)  # expect: accumulation-scaling
        loss.backward()
        error += sq.item()
    return error


model = DAE()
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    perm = torch.randperm(N)
    err = 0.0
    for start in range(0, N, BATCH):
        idx = perm[start : start + BATCH]
        opt.zero_grad()
        err += batch_gradients(model, noisy[idx], clean[idx])
        opt.step()
    print(f"epoch {epoch}: reconstruction {err / (N * DIM):.5f}")
