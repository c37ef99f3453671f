"""Looks like one module used many times by mistake: a Runge-Kutta solver is unrolled through the same
network, and the physical constants are learnt as bare parameters."""

import torch
from torch import nn


class VectorField(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_stiffness = nn.Parameter(torch.tensor(0.0))
        self.correction = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
        nn.init.zeros_(self.correction[2].weight)
        nn.init.zeros_(self.correction[2].bias)

    def forward(self, z):
        q, v = z[..., :1], z[..., 1:]
        return torch.cat([v, -self.log_stiffness.exp() * q + self.correction(z)], -1)


def rk4(f, z, dt):
    k1 = f(z)
    k2 = f(z + dt / 2 * k1)
    k3 = f(z + dt / 2 * k2)
    k4 = f(z + dt * k3)
    return z + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def integrate(f, z, steps, dt=0.1):
    path = [z]
    for _ in range(steps):
        path.append(rk4(f, path[-1], dt))
    return torch.stack(path[1:])


def truth(z):
    return torch.cat([z[..., 1:], -2.5 * z[..., :1] - 0.2 * z[..., 1:]], -1)


torch.manual_seed(23)
start = torch.randn(48, 2)
with torch.no_grad():
    observed = integrate(truth, start, 8)
field = VectorField()
opt = torch.optim.Adam(field.parameters(), lr=2e-2)
for it in range(10):
    rows = torch.randint(48, (16,))
    loss = (integrate(field, start[rows], 8) - observed[:, rows]).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
print(f"loss {loss.item():.5f} stiffness {field.log_stiffness.exp().item():.3f}")
