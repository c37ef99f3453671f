"""One model is trained by two optimizers with a scheduler for one of them only; their parameters do not overlap."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Orthogonalized(torch.optim.Optimizer):
    """Momentum whose matrix updates are orthogonalised by a few Newton-Schulz steps."""

    def __init__(self, params, lr=0.02, momentum=0.9):
        super().__init__(params, dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                buf = self.state[p].setdefault("buf", torch.zeros_like(p))
                buf.mul_(group["momentum"]).add_(p.grad)
                u = buf / (buf.norm() + 1e-7)
                for _ in range(5):
                    u = 1.5 * u - 0.5 * u @ u.T @ u
                p.add_(u, alpha=-group["lr"])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(20, 16)
        self.fc1, self.fc2 = nn.Linear(16, 32), nn.Linear(32, 16)
        self.out = nn.Linear(16, 4)

    def forward(self, ids):
        h = self.emb(ids).mean(1)
        return self.out(h + self.fc2(F.relu(self.fc1(h))))


torch.manual_seed(0)
ids = torch.randint(0, 20, (240, 5))
y = ids.float().mean(1).sub(4).div(3).long().clamp(0, 3)
net = Net()
matrices = [net.fc1.weight, net.fc2.weight]
others = [p for p in net.parameters() if not any(p is m for m in matrices)]
opts = [Orthogonalized(matrices), torch.optim.AdamW(others, lr=5e-3)]
sched = torch.optim.lr_scheduler.LinearLR(opts[0], 1.0, 0.1, total_iters=30)
for epoch in range(3):
    for idx in torch.randperm(240).split(24):
        loss = F.cross_entropy(net(ids[idx]), y[idx])
        net.zero_grad()
        loss.backward()
        for o in opts:
            o.step()
        sched.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
