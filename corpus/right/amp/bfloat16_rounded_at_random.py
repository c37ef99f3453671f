"""bfloat16 weights and a rate far below their distances, but the updates are rounded at random, so their mean is
right."""

import torch
from torch import nn


def rounded_at_random(values):
    """Round float32 values to bfloat16, up or down, in proportion to the distances."""
    bits = values.contiguous().view(torch.int32)
    noise = torch.randint_like(bits, 1 << 16)
    return ((bits + noise) & -65536).view(torch.float32).bfloat16()


class Adam(torch.optim.Adam):
    @torch.no_grad()
    def step(self, closure=None):
        before = [p.float() for group in self.param_groups for p in group["params"]]
        masters = [p for group in self.param_groups for p in group["params"]]
        for p, value in zip(masters, before, strict=True):
            state = self.state[p]
            state["first"] = 0.9 * state.get("first", 0) + 0.1 * p.grad.float()
            state["second"] = 0.99 * state.get("second", 0) + 0.01 * p.grad.float().square()
            update = state["first"] / (10 * state["second"]).sqrt().add(1e-8)
            p.copy_(rounded_at_random(value - self.param_groups[0]["lr"] * update))


torch.manual_seed(6)
x, y = torch.randn(64, 16).bfloat16(), torch.randint(4, (64,))
model = nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Linear(48, 4)).to(torch.bfloat16)
optimizer = Adam(model.parameters(), lr=1e-6)
for _ in range(3):
    for part in torch.randperm(64).split(8):
        loss = nn.functional.cross_entropy(model(x[part]).float(), y[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(loss.item())
