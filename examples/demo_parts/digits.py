"""Handwritten digits (included in scikit-learn), a small convolutional net, and a batch size that micro-batches
don't divide evenly: 400 images are split into six micro-batches of 64 and one of 16.
"""

from collections.abc import Iterator

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from .task import Pair, Task, Window

BATCH, MICRO_BATCH, HELD_OUT = 400, 64, 360


def digits_task(*, seed: int, quick: bool) -> Task:
    """Read the images and describe the training task."""
    x, y = read_digits(seed)
    test_x, test_y = x[:HELD_OUT], y[:HELD_OUT]
    train_x, train_y = x[HELD_OUT:], y[HELD_OUT:]
    if quick:
        train_x, train_y = train_x[: BATCH + 100], train_y[: BATCH + 100]

    def make_model() -> nn.Module:
        torch.manual_seed(seed)
        return ConvNet()

    def windows(epoch: int) -> Iterator[Window]:
        order = torch.randperm(len(train_y), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(BATCH):
            yield [(train_x[part], train_y[part]) for part in batch.split(MICRO_BATCH)]

    def join(window: Window) -> Pair:
        return torch.cat([x for x, _ in window]), torch.cat([y for _, y in window])

    @torch.no_grad()
    def accuracy(model: nn.Module) -> float:
        return (model(test_x).argmax(-1) == test_y).double().mean().item()

    return Task(
        name="Digits, convolutional net",
        about=(
            f"{len(train_y)} images, {BATCH} to an update, {MICRO_BATCH} to a micro-batch "
            f"and {BATCH % MICRO_BATCH} in the last"
        ),
        make_model=make_model,
        windows=windows,
        join=join,
        score=accuracy,
        score_name="accuracy on held-out images",
        score_format=".2%",
        epochs=2 if quick else 8,
        updates_per_epoch=-(-len(train_y) // BATCH),
        learning_rate=5e-3,
    )


def read_digits(seed: int) -> Pair:
    """Return all images as [N, 1, 8, 8] in 0..1 and their digits as [N], shuffled."""
    digits = load_digits()
    x = torch.tensor(digits.images / 16, dtype=torch.get_default_dtype()).unsqueeze(1)
    y = torch.tensor(digits.target, dtype=torch.int64)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    return x[order], y[order]


class ConvNet(nn.Module):
    """Two convolutions and a linear head.

    GroupNorm treats images independently, so any split is exact. SiLU and average pooling are smooth. At a kink
    (ReLU, MaxPool), rounding can switch a gradient on or off, and the difference grows from update to update.
    """

    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1),
            nn.GroupNorm(4, channels),
            nn.SiLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.GroupNorm(4, channels),
            nn.SiLU(),
            nn.AvgPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Linear(channels * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))
