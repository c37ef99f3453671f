"""Looks like argmax in the forward pass: gumbel_softmax(hard=True) is one-hot forward and soft backward, at a
temperature that is lowered by hand."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

N_VARS, N_CATS = 3, 4


class CategoricalVAE(nn.Module):
    def __init__(self, n_in):
        super().__init__()
        self.q = nn.Sequential(nn.Linear(n_in, 48), nn.ELU(), nn.Linear(48, N_VARS * N_CATS))
        self.p = nn.Sequential(nn.Linear(N_VARS * N_CATS, 48), nn.ELU(), nn.Linear(48, n_in))

    def forward(self, x, tau):
        logits = self.q(x).view(-1, N_VARS, N_CATS)
        z = F.gumbel_softmax(logits, tau=tau, hard=True)
        return self.p(z.flatten(1)), logits


def elbo(x, recon, logits):
    nll = F.binary_cross_entropy_with_logits(recon, x, reduction="none").sum(-1)
    log_q = F.log_softmax(logits, -1)
    kl = (log_q.exp() * (log_q + math.log(N_CATS))).sum((-1, -2))
    return -(nll + kl).mean()


torch.manual_seed(6)
patterns = (torch.rand(9, 16) > 0.5).float()
data = patterns[torch.randint(9, (160,))]
data = (data + (torch.rand_like(data) < 0.05)) % 2

vae = CategoricalVAE(16)
opt = torch.optim.AdamW(vae.parameters(), lr=4e-3)
tau, step = 1.0, 0
for epoch in range(3):
    for x in data.split(40):
        recon, logits = vae(x, tau)
        bound = elbo(x, recon, logits)
        opt.zero_grad()
        bound.neg().backward()
        opt.step()
        step += 1
        if step % 4 == 0:
            tau = max(0.5, tau * math.exp(-0.1))
    print(f"epoch {epoch} elbo {bound.item():.3f} tau {tau:.3f}")
