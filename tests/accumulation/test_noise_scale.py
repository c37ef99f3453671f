"""The noise scale is the ratio of noise to gradient that a problem really has, whatever else an update does."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import SGD

import gradgate as gg
from tests.accumulation.one_weight import StopError, one_weight, stopped_by, update_by
from tests.tensors import DEVICE, DTYPE, RTOL, randn, tensor

FEATURES, NOISE, UPDATES = 20, 1.0, 500
SIZES = [(4, 12, 20, 28), (16, 16, 16, 16), (8, 1, 0, 30)]  # of the micro-batches of windows
Sample = tuple[
    float, float, float, float
]  # a squared norm and a count, of the first micro-batch and of the window


class Regression:
    """Linear regression on normal inputs, at weights that stay: the gradient's mean and covariance are known.

    The gradient of an item is ``x (x @ offset - error)``. Its mean is ``offset``, its covariance is
    ``(|offset|^2 + NOISE^2) I + offset offset^T``.
    """

    def __init__(self, **options: Any) -> None:
        torch.manual_seed(0)
        self.offset = randn(FEATURES) / math.sqrt(FEATURES)
        self.weight = nn.Parameter(self.offset.clone())  # the true weights are zero
        self.noise = gg.NoiseScale(decay=1.0)
        self.accumulator = gg.Accumulator(SGD([self.weight], lr=0.0), noise_scale=self.noise, **options)

    @property
    def square(self) -> float:
        return float(self.offset @ self.offset)

    @property
    def trace(self) -> float:
        return FEATURES * (self.square + NOISE**2) + self.square

    def losses(self, sizes: tuple[int, ...]) -> list[tuple[Tensor, int]]:
        losses = []
        for size in sizes:
            x, error = randn(size, FEATURES), randn(size) * NOISE
            losses.append((((x @ self.weight - error) ** 2).sum() / 2, size))
        return losses

    def update(self, sizes: tuple[int, ...]) -> Sample:
        """Make one update; return squared norms and counts of its first micro-batch and of all, by autograd."""
        losses = self.losses(sizes)
        gradients = [torch.autograd.grad(loss, self.weight, retain_graph=True)[0] for loss, _ in losses]
        with self.accumulator.update() as update:
            for loss, size in update.micro_batches(losses):
                update.backward(loss, count=size, reduction="sum")
        first, window = gradients[0] / sizes[0], sum(gradients) / sum(sizes)
        return float(first @ first), sizes[0], float(window @ window), sum(sizes)


def ours(samples: list[Sample]) -> tuple[float, float]:
    """|G|^2 and tr(Sigma) by the formulas of the paper, weighted by the items after the first micro-batch."""
    weights = [total - count for _, count, _, total in samples]
    squares = [(total * large - count * small) / (total - count) for small, count, large, total in samples]
    traces = [(small - large) / (1 / count - 1 / total) for small, count, large, total in samples]
    return (
        sum(w * square for w, square in zip(weights, squares, strict=True)) / sum(weights),
        sum(w * trace for w, trace in zip(weights, traces, strict=True)) / sum(weights),
    )


def biased(samples: list[Sample]) -> tuple[float, float]:
    """Known to be wrong: takes the gradient of the window for the true one."""
    return sum(large for _, _, large, _ in samples) / len(samples), ours(samples)[1]


def without_counts(samples: list[Sample]) -> tuple[float, float]:
    """Known to be wrong: takes a window for as many equal micro-batches as it has."""
    alike = [(small, 16.0, large, 64.0) for small, _, large, _ in samples]
    return ours(alike)


@pytest.fixture(scope="module")
def trained() -> tuple[Regression, list[Sample]]:
    problem = Regression()
    return problem, [problem.update(SIZES[number % len(SIZES)]) for number in range(UPDATES)]


def error_of(found: tuple[float, float], problem: Regression) -> float:
    square, trace = found
    return abs(trace / square / (problem.trace / problem.square) - 1)


def test_the_estimate_is_within_ten_percent_of_the_truth(trained: tuple[Regression, list[Sample]]) -> None:
    problem, _ = trained
    assert problem.noise.updates == UPDATES
    assert problem.noise.value is not None
    assert problem.noise.gradient_square == pytest.approx(problem.square, rel=0.1)
    assert problem.noise.trace == pytest.approx(problem.trace, rel=0.1)
    assert problem.noise.value == pytest.approx(problem.trace / problem.square, rel=0.1)


@pytest.mark.parametrize("wrong", [biased, without_counts])
def test_ten_percent_reject_a_wrong_estimate(
    wrong: Callable[[list[Sample]], tuple[float, float]], trained: tuple[Regression, list[Sample]]
) -> None:
    problem, samples = trained
    assert error_of(ours(samples), problem) < 0.1 < error_of(wrong(samples), problem)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"clip_norm": 1e-3},
        {"clip_value": 1e-3},
        {"clear": "zero"},
        {"clear": gg.decay(0.9)},
        {"nonfinite": "step"},
        {"undo_step": True},
        {"scaler": True},
    ],
    ids=str,
)
def test_it_is_that_of_the_plain_gradients_whatever_else_an_update_does(options: dict[str, Any]) -> None:
    if "scaler" in options:
        options = {"scaler": GradScaler(DEVICE.type, init_scale=1024.0)}
    problem = Regression(**options)
    samples = [problem.update(sizes) for sizes in SIZES]
    square, trace = ours(samples)
    assert problem.noise.gradient_square == pytest.approx(square, rel=100 * RTOL)
    assert problem.noise.trace == pytest.approx(trace, rel=100 * RTOL)


def grads(model: nn.Module, part: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(model(part).square().mean(), tuple(model.parameters()))


@pytest.mark.parametrize("count", [1, tensor(1.0)], ids=["number", "tensor"])
def test_one_window_in_numbers(count: Any) -> None:
    """Gradients 5 over 1 item and 1 over 3: mean 2, |G|^2 = (4 * 4 - 25) / 3, tr(Sigma) = (25 - 4) / (3 / 4)."""
    weight, _, accumulator = one_weight(noise_scale=gg.NoiseScale())
    update = update_by(accumulator, weight, [(5.0, count), (1.0, 3)])
    noise = accumulator._state.noise_scale
    assert noise is not None
    assert noise.gradient_square == pytest.approx(-3.0)
    assert noise.trace == pytest.approx(28.0)
    assert update.noise_scale == math.inf  # so much noise that the gradient does not show


def test_a_window_that_is_not_stepped_changes_nothing() -> None:
    weight, _, accumulator = one_weight(noise_scale=(noise := gg.NoiseScale()), nonfinite="skip")
    with stopped_by(StopError), accumulator.update() as update:
        update.backward(weight * 1.0, count=1)
        raise StopError
    update_by(accumulator, weight, [(1.0, 1), (math.inf, 1)])
    assert (noise.updates, noise.skipped) == (0, {})


@pytest.mark.parametrize("done", [1, 2])
def test_a_stopped_window_goes_on(done: int) -> None:
    window = [(5.0, 1), (1.0, 3), (3.0, 2)]
    weight, _, accumulator = one_weight(noise_scale=(whole := gg.NoiseScale()))
    update_by(accumulator, weight, window)
    update_by(accumulator, weight, window)

    weight, _, accumulator = one_weight(noise_scale=gg.NoiseScale())
    update_by(accumulator, weight, window)
    with stopped_by(StopError), accumulator.update() as update:
        for number, (gradient, count) in enumerate(update.micro_batches(window), 1):
            update.backward(weight * gradient, count=count)
            if number == done:
                saved = accumulator.state_dict()
                raise StopError
    weight, _, accumulator = one_weight(noise_scale=(resumed := gg.NoiseScale()))
    accumulator.load_state_dict(saved)
    update_by(accumulator, weight, window)
    assert (resumed.value, resumed.trace, resumed.updates) == (whole.value, whole.trace, 2)


@pytest.mark.parametrize(
    ("batch", "advice"),
    [
        (256, "256 takes about 5.7 times the minimum number of updates, and 1.2 times the minimum number of items. "
              "With a larger batch, the number of updates would fall nearly in proportion: see gg.scale_lr."),
        (1200, "1,200 takes about 2 times the minimum number of updates, and 2 times the minimum number of items. "
               "This batch size balances updates and items."),
        (12000, "12,000 takes about 1.1 times the minimum number of updates, and 11 times the minimum number of "
                "items. A larger batch would save few updates, and would hardly allow a larger learning rate."),
    ],
    ids=["small", "balanced", "large"],
)  # fmt: skip
def test_advice(batch: int, advice: str) -> None:
    noise = gg.NoiseScale()
    noise.load_state_dict(
        {"updates": 1000, "skipped": {}, "weight": 2.0, "square": 1.0, "trace": 1203.0, "batch": 1}
    )
    assert noise.advice(batch) == f"The gradient noise scale is about 1,200 items. A batch of {advice}"
    assert repr(noise) == "NoiseScale(1,200 items after 1,000 updates)"


def test_memory_that_runs_out_measures_the_window_once() -> None:
    model = nn.Linear(2, 1, bias=False).to(DEVICE, DTYPE)
    noise = gg.NoiseScale()
    accumulator = gg.Accumulator(SGD(model.parameters(), lr=0.0), model=model, noise_scale=noise)

    def loss_fn(x: Tensor) -> Tensor:
        if len(x) > 2:
            raise torch.OutOfMemoryError
        return model(x).square().mean()

    x = randn(8, 2)
    accumulator.step(loss_fn, x)
    first, window = (grads(model, part)[0].reshape(-1) for part in (x[:2], x))
    small, large = float(first @ first), float(window @ window)
    assert noise.trace == pytest.approx((small - large) / (1 / 2 - 1 / 8))
    assert noise.updates == 1


def test_windows_that_show_nothing_are_counted() -> None:
    weight, _, accumulator = one_weight(noise_scale=(noise := gg.NoiseScale()))
    update = update_by(accumulator, weight, [(5.0, 1)])
    assert update.noise_scale is None
    with accumulator.update() as update:
        for count in update.micro_batches([1, 2]):
            update.backward(weight * 1.0, count=count)
            update.backward(weight * 2.0, count=count + 1)
    assert noise.skipped == {"one micro-batch": 1, "several losses": 1}
    assert repr(noise) == (
        "NoiseScale(no estimate after 0 updates; skipped: 1 with one micro-batch, 1 with several losses)"
    )
    assert noise.advice() == (
        "There is no estimate of the gradient noise scale yet. "
        "Windows without an estimate: 1 with one micro-batch, 1 with several losses."
    )


def test_squares_that_overflow_are_left_out() -> None:
    weight, _, accumulator = one_weight(noise_scale=(noise := gg.NoiseScale()))
    update_by(accumulator, weight, [(1e200, 1), (1e200, 1)])
    assert noise.skipped == {"not finite": 1}


def test_advice_where_the_gradient_does_not_show() -> None:
    weight, _, accumulator = one_weight(noise_scale=(noise := gg.NoiseScale()))
    update_by(accumulator, weight, [(5.0, 1), (1.0, 3)])
    assert noise.advice() == "In 1 update, noise hides the gradient. Measure longer, with decay closer to 1."
