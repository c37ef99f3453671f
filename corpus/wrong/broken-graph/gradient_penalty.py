"""The slope of the critic is taken without a graph of its own, so the penalty is a constant: the critic's
gradients are off by their whole size, and the penalty falls to 5.8 instead of 1.6."""

import torch
from torch import autograd, nn, optim

torch.manual_seed(42)

LAMBDA = 10
DIM = 64
BATCH = 32
CRITIC_ITERS = 2
ITERS = 5

netG = nn.Sequential(nn.Linear(2, DIM), nn.ReLU(True), nn.Linear(DIM, DIM), nn.ReLU(True), nn.Linear(DIM, 2))
netD = nn.Sequential(nn.Linear(2, DIM), nn.Tanh(), nn.Linear(DIM, DIM), nn.Tanh(), nn.Linear(DIM, 1))
optimizerD = optim.Adam(netD.parameters(), lr=1e-3, betas=(0.5, 0.9))
optimizerG = optim.Adam(netG.parameters(), lr=1e-3, betas=(0.5, 0.9))


def inf_train_gen():
    centers = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 2.0], [0.0, -2.0]])
    while True:
        yield centers[torch.randint(4, (BATCH,))] + 0.05 * torch.randn(BATCH, 2)


def calc_gradient_penalty(real, fake):
    alpha = torch.rand(BATCH, 1)
    mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    score = netD(mixed)
    slope = autograd.grad(score, mixed, grad_outputs=torch.ones_like(score))[0]  # expect: broken-graph
    return LAMBDA * ((slope.norm(2, dim=1) - 1) ** 2).mean()


data = inf_train_gen()
for iteration in range(ITERS):
    for p in netD.parameters():
        p.requires_grad = True
    for _ in range(CRITIC_ITERS):
        real = next(data)
        with torch.no_grad():
            fake = netG(torch.randn(BATCH, 2))
        netD.zero_grad()
        wasserstein = netD(real).mean() - netD(fake).mean()
        penalty = calc_gradient_penalty(real, fake)
        D_cost = penalty - wasserstein
        D_cost.backward()
        optimizerD.step()

    for p in netD.parameters():
        p.requires_grad = False
    netG.zero_grad()
    G_cost = -netD(netG(torch.randn(BATCH, 2))).mean()
    G_cost.backward()
    optimizerG.step()
    print("iter %d  D %.4f  W %.4f  gp %.4f" % (iteration, D_cost.item(), wasserstein.item(), penalty.item()))
