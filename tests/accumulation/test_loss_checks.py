"""What an accumulator's first losses show of a script's mistakes."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

import gradgate as gg
from gradgate.errors import CountError, CountWarning, GraphError
from tests.messages import raises, warns
from tests.silence import no_warning
from tests.tensors import labels, randn, zeros

IGNORED = -100


def counted(*windows: tuple[Sequence[list[int]], Sequence[object]]) -> None:
    """Run windows, each of targets and counts, in one accumulator."""
    weight = nn.Parameter(zeros(1, 2))
    accumulator = gg.Accumulator(SGD([weight], lr=1.0))
    for targets, counts in windows:
        with accumulator.update() as update:
            for y, count in update.micro_batches(list(zip(targets, counts, strict=True))):
                loss = cross_entropy(randn(len(y), 1) @ weight, labels(y))
                update.backward(loss, count=count)  # type: ignore[arg-type]


def test_counts_out_of_proportion_to_what_the_losses_show_are_warned_of_once() -> None:
    """Sequences counted with their padding: 4 and 4, where 4 and 1 took part."""
    facts = ("count is 4", "a mean over 1 items", "count 4 for 4 items")
    with warns(CountWarning, "counts of samples, not of labels", *facts) as said:
        counted(*[([[0, 1, 0, 1], [0, IGNORED, IGNORED, IGNORED]], [4, 4])] * 3)
    assert len(said) == 1
    assert said[0].filename == __file__


@pytest.mark.parametrize(("as_tensor", "lengths"), [(False, (1700, 1300)), (True, (8, 3))])
def test_an_attention_mask_beside_shifted_labels_is_warned_of(
    as_tensor: bool, lengths: tuple[int, int]
) -> None:
    """One token of each sequence has no target. The longer they are, the less it matters, and the less it shows."""
    weight = nn.Parameter(zeros(2, 2))
    accumulator = gg.Accumulator(SGD([weight], lr=1.0))
    longest, shortest = lengths

    def train() -> None:
        with accumulator.update() as update:
            for valid in update.micro_batches(lengths):
                mask = torch.arange(longest)[None] < valid
                targets = torch.ones(1, longest, dtype=torch.long).masked_fill(~mask, IGNORED)
                logits = randn(1, longest, 2) @ weight
                loss = cross_entropy(logits[:, :-1].reshape(-1, 2), targets[:, 1:].reshape(-1))
                update.backward(loss, count=mask.sum() if as_tensor else int(mask.sum()))

    facts = (f"count is {shortest}", f"over {shortest - 1} items", f"count {longest} for {longest - 1} items")
    with warns(CountWarning, "counts of samples, not of labels", *facts) as said:
        train()
    assert len(said) == 1


@pytest.mark.parametrize(
    "windows",
    [
        [([[0, 1, 0, 1], [0, IGNORED, 1, IGNORED]], [4, 2])],
        [([[0, 1, 0, 1], [0, IGNORED, 1, IGNORED]], [40, 20])],  # sequences of ten, say
        [([[0, 1], [1, 0]], [20, 20]), ([[0, 1], [1, 0]], [14, 14])],  # and of seven in the next window
        [([[0, 1], [IGNORED, IGNORED], [1, 0]], [2, 0, 2])],
        [([[0, 1, 0, 1], [0, IGNORED, 1, IGNORED]], [None, None])],
    ],
    ids=["right", "in proportion", "in proportion within a window", "one empty", "left out"],
)
def test_counts_in_proportion_are_not(windows: list[tuple[list[list[int]], list[object]]]) -> None:
    with no_warning():
        counted(*windows)


def of_two_terms(
    targets: Sequence[list[int]], other: Callable[[nn.Linear, torch.Tensor], torch.Tensor]
) -> None:
    """Run a window of a cross entropy and another term, with the number of samples as the count of both."""
    layer = nn.Linear(1, 2).to(zeros(1))
    with gg.Accumulator(SGD(layer.parameters(), lr=1.0)).update() as update:
        for y in update.micro_batches(targets):
            out = layer(randn(len(y), 1))
            update.backward(cross_entropy(out, labels(y)) + 0.5 * other(layer, out), count=len(y))


def square(layer: nn.Linear, out: torch.Tensor) -> torch.Tensor:
    return out.square().mean()


@pytest.mark.parametrize(
    "other",
    [
        square,
        lambda layer, out: mse_loss(
            layer.weight, torch.ones_like(layer.weight)
        ),  # the same in every micro-batch
        lambda layer, out: (
            out.square().mean() * len(out)
        ),  # the weight of a term may depend on the micro-batch
    ],
    ids=["of samples", "of parameters", "weighted"],
)
def test_a_count_in_proportion_to_all_means_over_samples_is_not(
    other: Callable[[nn.Linear, torch.Tensor], torch.Tensor],
) -> None:
    with no_warning():
        of_two_terms([[0, 1, 0, 1], [0]], other)


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(2, 2), nn.Linear(2, 2)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.inner, self.first(x), use_reentrant=self.reentrant)


@pytest.mark.parametrize("window", [1, 2, 3], ids=lambda number: f"in window {number}")
@pytest.mark.parametrize("micro_batch", [0, 2])
def test_a_reentrant_checkpoint_that_is_switched_on_later_is_refused_before_anything_is_stepped(
    window: int, micro_batch: int
) -> None:
    model = Checkpointed(reentrant=False)
    accumulator = gg.Accumulator(SGD(model.parameters(), lr=1.0))
    for number in range(window + 1):
        before = model.inner.weight.detach().clone()
        with suppress(GraphError), accumulator.update() as update:
            for place in update.micro_batches(range(3)):
                model.reentrant = (number, place) >= (window, micro_batch)
                update.backward(model(torch.randn(4, 2)).mean(), count=4)
        assert update.stepped == (number < window)
    assert torch.equal(model.inner.weight, before)


class OwnCheckpoint(torch.autograd.Function):
    """As libraries for fine-tuning have it: forwards without a graph, backwards a pass of its own."""

    @staticmethod
    def forward(ctx: Any, function: Any, hidden: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(hidden)
        ctx.forward_function = function
        with torch.no_grad():
            return function(hidden)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
        (hidden,) = ctx.saved_tensors
        hidden = hidden.detach().requires_grad_()
        with torch.enable_grad():
            torch.autograd.backward(ctx.forward_function(hidden), gradient)
        return None, hidden.grad


WRAPPED: dict[str, Callable[[nn.Module], Any]] = {
    "the module": lambda module: module,
    "a method": lambda module: module.forward,
    "a partial": lambda module: partial(module.__call__),
    "a closure": lambda module: lambda x: module(x),
    "a closure of a partial": lambda module: (lambda call: lambda x: call(x))(partial(module.forward)),
}


def one_micro_batch(accumulator: gg.Accumulator, loss_of: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with accumulator.update() as update:
        update.backward(loss_of(torch.randn(4, 2)), count=4)


@pytest.mark.parametrize("wrapped", WRAPPED.values(), ids=WRAPPED)
def test_a_checkpoint_of_ones_own_that_hides_parameters_is_refused(
    wrapped: Callable[[nn.Module], Any],
) -> None:
    first, block = nn.Linear(2, 2), nn.Linear(2, 2)
    accumulator = gg.Accumulator(SGD([*first.parameters(), *block.parameters()], lr=1.0))
    one_micro_batch(accumulator, lambda x: block(first(x)).mean())
    message = "OwnCheckpointBackward, which runs its own backward pass through Linear"
    with pytest.raises(GraphError, match=message):
        one_micro_batch(accumulator, lambda x: OwnCheckpoint.apply(wrapped(block), first(x)).mean())
    assert block.weight.grad is None


def test_a_function_that_keeps_a_module_which_the_graph_reaches_is_not() -> None:
    block = nn.Linear(2, 2)

    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, module: nn.Module) -> torch.Tensor:
            ctx.module = module
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
            return gradient, None

    accumulator = gg.Accumulator(SGD(block.parameters(), lr=1.0))
    one_micro_batch(accumulator, lambda x: Keeps.apply(block(x), block).mean())
    frozen = nn.Linear(2, 2).requires_grad_(False)
    before = block.weight.detach().clone()
    one_micro_batch(accumulator, lambda x: Keeps.apply(block(x), frozen).mean())
    assert not torch.equal(block.weight, before)


def test_a_loss_that_turns_from_a_mean_into_a_sum_in_mid_run_is_refused() -> None:
    model, y = nn.Linear(3, 2), torch.tensor([0, 1, 1, 0])
    accumulator = gg.Accumulator(SGD(model.parameters(), lr=0.1))
    for _ in range(20):
        with accumulator.update() as update:
            update.backward(cross_entropy(model(torch.ones(4, 3)), y), count=4)
    with raises(CountError, "a sum called a mean"), accumulator.update() as update:
        update.backward(cross_entropy(model(torch.ones(4, 3)), y, reduction="sum"), count=4)


@pytest.mark.parametrize(("times", "shared"), [(1200, False), (60, True)], ids=["deep", "shared"])
def test_a_sum_of_many_terms_is_read_in_bounded_time(times: int, shared: bool) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    accumulator = gg.Accumulator(torch.optim.SGD([weight], lr=0.1))
    with accumulator.update() as update:
        for _ in update.micro_batches(range(2)):
            loss = weight.mean()
            for _ in range(times):  # shared: 2**60 paths lead to the first term
                loss = loss + (loss if shared else weight.mean())
            update.backward(loss, count=4)
    assert update.stepped
