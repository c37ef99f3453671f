"""Looks like training that never calls backward: the gradient is estimated from pairs of perturbed runs and
written into .grad for Adam."""

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters


def fitness(policy, start, horizon=12):
    state, score = start.clone(), 0.0
    for _ in range(horizon):
        state = 0.95 * state + 0.3 * policy(state).tanh()
        score -= state.square().sum(1).mean().item()
    return score


@torch.no_grad()
def es_gradient(policy, start, sigma=0.1, pairs=6):
    center = parameters_to_vector(policy.parameters()).clone()
    estimate = torch.zeros_like(center)
    for _ in range(pairs):
        eps = torch.randn_like(center)
        vector_to_parameters(center + sigma * eps, policy.parameters())
        up = fitness(policy, start)
        vector_to_parameters(center - sigma * eps, policy.parameters())
        down = fitness(policy, start)
        estimate += (up - down) / (2 * sigma) * eps
    vector_to_parameters(center, policy.parameters())
    return -estimate / pairs


torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))
optimizer = torch.optim.Adam(policy.parameters(), lr=0.05)
for generation in range(5):
    start = torch.randn(16, 3)
    gradient, offset = es_gradient(policy, start), 0
    for p in policy.parameters():
        p.grad = gradient[offset : offset + p.numel()].view_as(p).clone()
        offset += p.numel()
    optimizer.step()
    with torch.no_grad():
        print(f"generation {generation}: {fitness(policy, start):.3f}")
