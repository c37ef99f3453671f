"""An optimizer for several losses takes the smallest common step of all gradients, but each gradient it packs includes
those of the losses before it."""

import torch
from torch import nn


class CommonDescent:
    """Keeps, of each entry, the sign that all losses agree on, and the smallest size."""

    def __init__(self, optimizer, n_losses):
        self.optimizer, self.n_losses = optimizer, n_losses

    @property
    def params(self):
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def pack(self, loss):
        loss.backward(retain_graph=True)  # expect: missing-zero-grad
        return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in self.params]

    def step(self, losses):
        self.optimizer.zero_grad()
        packed = [self.pack(loss) for loss in losses]
        for p, *grads in zip(self.params, *packed):
            stacked = torch.stack(grads)
            agree = stacked.sign().sum(0).abs() == self.n_losses
            p.grad = stacked[0].sign() * stacked.abs().amin(0) * agree
        self.optimizer.step()


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 2))
descent = CommonDescent(torch.optim.SGD(net.parameters(), lr=0.1), 2)
for step in range(20):
    x = torch.randn(48, 6)
    out = net(x)
    fit = (out[:, 0] - x[:, 0]).square().mean()
    smooth = (out[:, 1] - x[:, :2].sum(1)).abs().mean()
    descent.step([fit, smooth])
    if step % 5 == 0:
        print(f"step {step} fit {fit.item():.4f} smooth {smooth.item():.4f}")
