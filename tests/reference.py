"""The slow, obvious truth: the whole batch at once, plain autograd, one division."""

from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tests.tensors import RTOL, labels, on_device, randn

FEATURES, CLASSES, IGNORED = 3, 4, -100


@dataclass
class Problem:
    """A model that treats items apart, and a batch of sequences of which some tokens do not count."""

    x: Tensor  # [samples, time, features]
    y: Tensor  # [samples, time], IGNORED where a token does not count
    model: nn.Module = field(default_factory=lambda: small_model())

    def loss_sum(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(
            self.model(x).flatten(0, 1), y.flatten(), ignore_index=IGNORED, reduction="sum"
        )

    def loss_mean(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.model(x).flatten(0, 1), y.flatten(), ignore_index=IGNORED)

    def count(self, y: Tensor) -> int:
        return int((y != IGNORED).sum())


def small_model(seed: int = 0) -> nn.Module:
    """Layer norm, a bias, a nonlinearity: nothing that couples samples."""
    torch.manual_seed(seed)
    return on_device(
        nn.Sequential(nn.Linear(FEATURES, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, CLASSES, bias=False))
    )


def problem(valid: Iterable[int], time: int = 4, seed: int = 0) -> Problem:
    """A batch with as many samples as numbers are given; each says how many of its tokens count."""
    torch.manual_seed(seed)
    rows = [[(7 * i + t) % CLASSES if t < n else IGNORED for t in range(time)] for i, n in enumerate(valid)]
    y = labels(rows).reshape(-1, time)
    return Problem(randn(len(rows), time, FEATURES), y)


def whole_batch_gradient(task: Problem) -> list[Tensor]:
    """The gradient of the mean over every item that counts."""
    loss = task.loss_sum(task.x, task.y) / task.count(task.y)
    return list(torch.autograd.grad(loss, list(task.model.parameters())))


@contextmanager
def received(optimizer: Optimizer):  # type: ignore[no-untyped-def]
    """Collect, per optimizer step, copies of the gradients that the optimizer received."""
    steps: list[list[Tensor | None]] = []

    def note(stepped: Optimizer, args: object, kwargs: object) -> None:
        parameters = [p for group in stepped.param_groups for p in group["params"]]
        steps.append([None if p.grad is None else p.grad.detach().clone() for p in parameters])

    handle = optimizer.register_step_pre_hook(note)
    try:
        yield steps
    finally:
        handle.remove()


def error(actual: Iterable[Tensor | None], expected: Iterable[Tensor]) -> float:
    """max |difference| / max |expected|, as in the table of docs/exactness.md."""
    pairs = list(zip(actual, expected, strict=True))
    largest = max(float(e.abs().max()) for _, e in pairs)
    apart = max(float(((torch.zeros_like(e) if a is None else a) - e).abs().max()) for a, e in pairs)
    return apart / largest


def assert_same(actual: Iterable[Tensor | None], expected: Iterable[Tensor], rtol: float = RTOL) -> None:
    found = error(actual, expected)
    assert found <= rtol, f"off by {found:.1e} of the largest gradient, {rtol:.0e} allowed"


Way = Callable[[Problem, Optimizer, list[int]], None]
"""A way to make one update from a batch that is cut into parts of the given numbers of samples."""


def parts(task: Problem, cut: list[int]) -> list[tuple[Tensor, Tensor]]:
    return list(zip(task.x.split(cut), task.y.split(cut), strict=True))
