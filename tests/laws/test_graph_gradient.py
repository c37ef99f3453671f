"""Law. A gate does to a micro-batch's gradient what it does in a plain ``loss.backward()``, whatever the counts.

What is added up is the gradient that it let pass, weighted by the count. A hook of the user's sees the plain
gradient where counts are equal; otherwise it sees ``count / unit`` times the plain gradient, where the unit is the
window's first count.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD

import gradgate as gg
from tests.reference import assert_same, problem, received, small_model
from tests.tensors import randn

pytestmark = pytest.mark.filterwarnings("ignore:backward. the graph holds gg.clip_gradient")

LIMIT = 0.02  # which about half of the entries below exceed


BENT: dict[str, Callable[[Tensor], Tensor]] = {
    "clip_gradient by value": lambda x: gg.clip_gradient(x, max_value=LIMIT),
    "clip_gradient by norm": lambda x: gg.clip_gradient(x, max_norm=LIMIT),
}

Window = list[tuple[Tensor, int]]


def window_of(counts: list[int]) -> Window:
    torch.manual_seed(1)
    return [(randn(max(count, 1), 3), count) for count in counts]


def loss_of(model: nn.Module, bend: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return model[1:](bend(model[0](x))).square().mean()


def plain(model: nn.Module, bend: Callable[[Tensor], Tensor], window: Window) -> list[Tensor]:
    """sum(count * gradient of the plain backward) / sum(count)."""
    parameters = list(model.parameters())
    sums = [torch.zeros_like(parameter) for parameter in parameters]
    for x, count in window:
        if count:
            gradients = torch.autograd.grad(loss_of(model, bend, x), parameters)
            for total, gradient in zip(sums, gradients, strict=True):
                total += count * gradient
    return [total / sum(count for _, count in window) for total in sums]


def ours(
    model: nn.Module,
    bend: Callable[[Tensor], Tensor],
    window: Sequence[tuple[Tensor, int | Tensor]],
    *,
    known: bool = True,
    **options: Any,
) -> list[Tensor]:
    optimizer = SGD(model.parameters(), lr=0.0)
    with received(optimizer) as steps, gg.Accumulator(optimizer, **options).update() as update:
        for x, count in update.micro_batches(window if known else iter(window)):
            update.backward(loss_of(model, bend, x), count=count)
    return steps[0]


counts_of_windows = st.lists(st.integers(0, 9), min_size=1, max_size=7).filter(any)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("bend", BENT.values(), ids=BENT)
@settings(max_examples=25)
@given(counts=counts_of_windows)
def test_a_gate_bends_the_gradient_of_a_plain_backward(
    bend: Callable[[Tensor], Tensor], known: bool, counts: list[int]
) -> None:
    model, window = small_model(), window_of(counts)
    assert_same(ours(model, bend, window, known=known), plain(model, bend, window))


def seeded_with_its_weight(
    model: nn.Module, bend: Callable[[Tensor], Tensor], window: Window
) -> list[Tensor]:
    """Known to be wrong: the weight goes into the backward pass."""
    total = sum(count for _, count in window)
    model.zero_grad()
    for x, count in window:
        loss_of(model, bend, x).backward(torch.tensor(count / total, dtype=x.dtype, device=x.device))
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("bend", BENT.values(), ids=BENT)
def test_the_law_rejects_weights_in_the_backward_pass(bend: Callable[[Tensor], Tensor]) -> None:
    model, window = small_model(), window_of([4, 9, 1])
    with pytest.raises(AssertionError, match="off by"):
        assert_same(seeded_with_its_weight(model, bend, window), plain(model, bend, window))
    straight = lambda x: x  # noqa: E731 - where nothing bends, it is right
    assert_same(seeded_with_its_weight(model, straight, window), plain(model, straight, window))


def seen_by_hooks(counts: list[int], reduction: str, **options: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Return what a hook on the logits sees in plain backward passes, and in a window."""
    task = problem([2] * sum(counts))
    scaler = torch.amp.GradScaler(init_scale=2.0**10, device="cpu") if options else None
    plain_scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=bool(options))
    shown: tuple[list[Tensor], list[Tensor]] = [], []

    def loss_of_part(part: slice, seen: list[Tensor]) -> Tensor:
        logits = task.model(task.x[part])
        logits.register_hook(lambda gradient: seen.append(gradient.clone()))
        return getattr(logits.square(), reduction)()

    parts = [slice(sum(counts[:i]), sum(counts[: i + 1])) for i in range(len(counts))]
    for part in parts:
        plain_scaler.scale(loss_of_part(part, shown[0])).backward()
    task.model.zero_grad()
    accumulator = gg.Accumulator(SGD(task.model.parameters(), lr=0.0), scaler=scaler)
    with accumulator.update() as update:
        for part, count in update.micro_batches(list(zip(parts, counts, strict=True))):
            update.backward(loss_of_part(part, shown[1]), count=count, reduction=reduction)
    return shown


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@settings(max_examples=15)
@given(count=st.integers(1, 9), micro_batches=st.integers(1, 4))
def test_where_counts_are_equal_a_hook_sees_exactly_the_gradient_of_a_plain_backward(
    reduction: str, count: int, micro_batches: int
) -> None:
    assert all(map(torch.equal, *seen_by_hooks([count] * micro_batches, reduction)))


def test_under_a_loss_scale_a_hook_sees_what_users_of_a_scaler_see() -> None:
    assert all(map(torch.equal, *seen_by_hooks([4, 4, 4], "mean", scaled=True)))


@settings(max_examples=15)
@given(counts=st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_otherwise_a_hook_sees_it_times_the_count_in_units_of_the_first_one(counts: list[int]) -> None:
    plain_gradients, gradients = seen_by_hooks(counts, "mean")
    assert_same(gradients, [g * count / counts[0] for g, count in zip(plain_gradients, counts, strict=True)])


def test_counts_on_a_device_bend_as_numbers_do() -> None:
    bend = BENT["clip_gradient by value"]
    for counts in ([4, 9, 1], [0, 3, 0, 5], [2, 2]):
        model, window = small_model(), window_of(counts)
        # Weights are float32 there, and each change of the count rounds the sum once.
        on_device = [(x, torch.as_tensor(count)) for x, count in window]
        assert_same(ours(model, bend, on_device), plain(model, bend, window), rtol=1e-6)
