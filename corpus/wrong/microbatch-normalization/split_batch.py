"""A batch of 40 is split into 12, 12, 12 and 4 rows, and the four means count the same: the first gradient is
off by 25 %.
"""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(17)
gen = torch.Generator().manual_seed(17)

n, features = 160, 10
x = torch.randn(n, features, generator=gen)
logit = x[:, 0] * 2 - x[:, 1] + 0.5 * x[:, 2] * x[:, 3]
y = (logit + 0.5 * torch.randn(n, generator=gen) > 0).float()

batch_size = 40
max_rows = 12  # what fits on the card

model = nn.Sequential(nn.Linear(features, 32), nn.Tanh(), nn.Dropout(0.0), nn.Linear(32, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)


def step_on(batch_x, batch_y):
    pieces = list(zip(batch_x.split(max_rows), batch_y.split(max_rows)))
    opt.zero_grad()
    value = 0.0
    for px, py in pieces:
        loss = F.binary_cross_entropy_with_logits(model(px).squeeze(-1), py)
        loss = loss / len(pieces)  # expect: microbatch-normalization
        loss.backward()
        value += loss.item()
    opt.step()
    return value


for epoch in range(2):
    order = torch.randperm(n, generator=gen)
    losses = [step_on(x[rows], y[rows]) for rows in order.split(batch_size)]
    with torch.no_grad():
        acc = ((model(x).squeeze(-1) > 0) == y.bool()).float().mean()
    print(f"epoch {epoch}: bce {sum(losses) / len(losses):.4f} acc {acc:.3f}")
