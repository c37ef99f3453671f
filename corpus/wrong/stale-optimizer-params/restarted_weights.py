"""An evolution of weights restarts every ten steps from a disturbed copy, which the optimizer does not hold."""

import torch


class Fit:
    def __init__(self, dim):
        self.theta = torch.zeros(dim, requires_grad=True)
        self.shift = torch.zeros(1, requires_grad=True)
        self.optimizer = torch.optim.Adam([self.theta, self.shift], lr=0.05)

    def restart(self):
        best = self.theta.detach()
        self.theta = best + 0.1 * torch.randn(len(best))  # expect: stale-optimizer-params
        self.theta.requires_grad_()

    def step(self, x, y):
        loss = (x @ self.theta + self.shift - y).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


torch.manual_seed(0)
fit, true = Fit(5), torch.softmax(torch.randn(5), 0)
for step in range(40):
    x = torch.randn(32, 5)
    loss = fit.step(x, x @ true + 0.2)
    if step % 10 == 9:
        fit.restart()
print(f"{loss:.4f}")
