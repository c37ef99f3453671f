"""Generator and discriminator, each in DDP, each with an optimizer of its own."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
G = DistributedDataParallel(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)))
D = DistributedDataParallel(nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)))
opt_g = torch.optim.Adam(G.parameters(), lr=2e-4, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(D.parameters(), lr=2e-4, betas=(0.5, 0.999))
noise = torch.Generator().manual_seed(rank)
ones, zeros = torch.ones(16, 1), torch.zeros(16, 1)

for step in range(6):
    real = torch.randn(16, 2, generator=noise) * 0.3 + 1
    fake = G(torch.randn(16, 4, generator=noise))

    opt_d.zero_grad()
    both = D(torch.cat([real, fake.detach()]))
    d_loss = F.binary_cross_entropy_with_logits(both, torch.cat([ones, zeros]))
    d_loss.backward()
    opt_d.step()

    for p in D.parameters():
        p.requires_grad_(False)
    opt_g.zero_grad()
    g_loss = F.binary_cross_entropy_with_logits(D.module(fake), ones)
    g_loss.backward()
    opt_g.step()
    for p in D.parameters():
        p.requires_grad_(True)

if rank == 0:
    print(d_loss.item(), g_loss.item())
dist.destroy_process_group()
