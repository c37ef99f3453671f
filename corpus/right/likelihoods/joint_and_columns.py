"""Inputs of nll_loss that don't add up to 1 over the classes, and are right: joint log-likelihoods of a Gaussian
classifier, and a similarity matrix that is normalized over its columns as well as over its rows."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
means = nn.Parameter(torch.randn(3, 4))
log_scale = nn.Parameter(torch.zeros(3, 4))
prior = nn.Parameter(torch.zeros(3))
left, right = nn.Linear(4, 8), nn.Linear(4, 8)
optimizer = torch.optim.Adam([means, log_scale, prior, *left.parameters(), *right.parameters()], lr=1e-2)
for step in range(12):
    y = torch.randint(3, (32,))
    x = torch.randn(32, 4) + y[:, None]
    gauss = torch.distributions.Normal(means, log_scale.exp())
    joint = gauss.log_prob(x[:, None]).sum(-1) + prior.log_softmax(0)
    likelihood = F.nll_loss(joint, y)

    a, b = F.normalize(left(x), dim=1), F.normalize(right(x + 0.1 * torch.randn_like(x)), dim=1)
    similar = a @ b.t() / 0.2
    pairs = torch.arange(32)
    rows = F.nll_loss(F.log_softmax(similar, dim=1), pairs)
    columns = F.nll_loss(F.log_softmax(similar, dim=0), pairs)
    loss = likelihood + (rows + columns) / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 4 == 3:
        print(f"{step + 1} likelihood {likelihood.item():.3f} pairs {rows.item() + columns.item():.3f}")
