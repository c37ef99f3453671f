"""The update clears only if it is asked to, and its caller doesn't ask."""

import torch


class Fitter:
    def __init__(self, dim: int):
        self.line = torch.nn.Linear(dim, 1)
        self.sgd = torch.optim.SGD(self.line.parameters(), lr=1e-3)

    def update(self, loss: torch.Tensor, clear: bool = False) -> float:
        loss.backward()
        self.sgd.step()  # expect: missing-zero-grad
        if clear:
            self.sgd.zero_grad()
        return loss.item()


torch.manual_seed(1)
fitter = Fitter(4)
for _ in range(25):
    x = torch.randn(8, 4)
    last = fitter.update((fitter.line(x) - x.sum(1, keepdim=True)).abs().mean())
print(last)
