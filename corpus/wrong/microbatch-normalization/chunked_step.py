"""A batch of 50 is processed in memory-saving chunks of 20, 20 and 10 whose mean losses get equal weight, so samples of the short chunk count double."""

from typing import Callable, Iterator

import torch
from torch import Tensor, nn


def spirals(n: int) -> tuple[Tensor, Tensor]:
    t = torch.rand(n) * 3 + 0.3
    label = torch.randint(0, 2, (n,))
    angle = 2.0 * t + label * torch.pi
    pts = torch.stack([t * angle.cos(), t * angle.sin()], 1) + 0.05 * torch.randn(n, 2)
    return pts, label


def batches(x: Tensor, y: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    for idx in torch.randperm(len(x)).split(size):
        yield x[idx], y[idx]


def backward_in_chunks(
    model: nn.Module,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    max_rows: int,
) -> float:
    """Forward and backward at most ``max_rows`` rows at a time."""
    xs, ys = x.split(max_rows), y.split(max_rows)
    value = 0.0
    for xc, yc in zip(xs, ys):
        part = loss_fn(model(xc), yc) / len(xs)  # expect: microbatch-normalization
        part.backward()
        value += part.item()
    return value


class FourierFeatures(nn.Module):
    def __init__(self, n_in: int, n_freq: int):
        super().__init__()
        self.register_buffer("freq", torch.randn(n_in, n_freq))

    def forward(self, x: Tensor) -> Tensor:
        z = x @ self.freq
        return torch.cat([z.sin(), z.cos(), x], dim=-1)


def main() -> None:
    torch.manual_seed(99)
    torch.set_num_threads(1)
    x, y = spirals(300)
    x_val, y_val = spirals(100)
    model = nn.Sequential(FourierFeatures(2, 12), nn.Linear(26, 32), nn.SiLU(), nn.Linear(32, 2))
    optimizer = torch.optim.NAdam(model.parameters(), lr=5e-3)
    loss_fn = nn.CrossEntropyLoss()

    for epoch in range(3):
        model.train()
        values = []
        for xb, yb in batches(x, y, 50):
            optimizer.zero_grad()
            values.append(backward_in_chunks(model, loss_fn, xb, yb, max_rows=20))
            optimizer.step()
        model.eval()
        with torch.no_grad():
            acc = (model(x_val).argmax(1) == y_val).float().mean().item()
        print(f"epoch={epoch} loss={sum(values) / len(values):.4f} val_acc={acc:.3f}")


if __name__ == "__main__":
    main()
