"""A rank that raises, dies, runs out of memory or trains something else: all know, nobody hangs or half steps."""

import os
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradgate as gg
from gradgate.errors import RankError
from tests.ranks.processes import TIMEOUT_SECONDS, in_a_row, together
from tests.ranks.work import adam, data, model, values
from tests.reference import assert_same

pytestmark = pytest.mark.slow

SHORT_SECONDS = 4  # that are waited for a rank that does not come
WIDE = "DefaultCPUAllocator: not enough memory"  # what a CPU says


def same(some: list[Tensor], others: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def raising(rank: int, where: str) -> Any:
    net = model()
    called = DistributedDataParallel(net)
    accumulator = gg.Accumulator(adam(net), model=called)
    before, (x, _) = values(net), data()
    try:
        with accumulator.update() as update:
            for rows in update.micro_batches(x.split(8)):
                if rank == 1 and where == "block" and update.micro_batch_count == 2:
                    raise ZeroDivisionError("two by nought")
                loss = called(rows).square().mean()
                if rank == 1 and where == "backward" and update.micro_batch_count == 3:
                    loss.register_hook(lambda _: 1 / 0)
                update.backward(loss, count=8)
            if rank == 1 and where == "after":
                raise ZeroDivisionError("too late")
    except (RankError, ZeroDivisionError) as error:
        first = f"{type(error).__name__}: {error}"
    still = same(values(net), before) and all(one.grad is None for one in net.parameters())
    again = accumulator.step_window(lambda rows: net(rows).square().mean(), [x])  # all go on together
    return first, still, again.count, values(net)


def test_when_one_rank_raises_nobody_steps_and_all_can_go_on() -> None:
    for ranks in in_a_row(raising, 3, [("block",), ("backward",), ("after",)]):
        assert ranks[1][0].startswith("ZeroDivisionError")
        what = "rank 1 stopped in this window: ZeroDivisionError:"
        for number in (0, 2):
            assert ranks[number][0].startswith(f"RankError: update: {what}")
            assert "No rank made a step" in ranks[number][0]
        assert all(still for _, still, _, _ in ranks)
        assert all(same(moved, ranks[0][3]) for _, _, _, moved in ranks)


def dying(rank: int) -> Any:
    net = model()
    accumulator = gg.Accumulator(adam(net), model=net)
    before, (x, _) = values(net), data()
    started = time.monotonic()
    try:
        with accumulator.update() as update:
            update.backward(net(x).square().mean(), count=24)
            if rank == 1:
                os._exit(1)
    except RankError as error:
        return str(error), same(values(net), before), time.monotonic() - started
    return None


def test_when_one_rank_dies_the_others_get_an_error_in_time() -> None:
    ranks = together(dying, 2)
    message, still, seconds = ranks[0]
    assert ranks[1] is None
    assert message.startswith("update: rank 0 of 2 waited for rank 1, without an answer")
    assert still
    assert seconds < 2 * TIMEOUT_SECONDS


def leaving(rank: int, how: str) -> Any:
    net = model()
    accumulator = gg.Accumulator(adam(net), model=net)
    x, _ = data()
    updates = 2 if rank == 1 else 3
    try:
        for _ in range(updates):
            accumulator.step_window(lambda rows: net(rows).square().mean(), [x])
            before = values(net)
    except RankError as error:
        return str(error), same(values(net), before)
    if how == "stays":
        time.sleep(SHORT_SECONDS + 1)  # evaluates, say
    return "ended", True


@pytest.mark.parametrize("how", ["ends", "stays"])
def test_a_rank_that_makes_fewer_updates_is_named(how: str) -> None:
    ranks = together(leaving, 3, how, timeout=SHORT_SECONDS)
    for number in (0, 2):
        assert ranks[number][0].startswith(f"update: rank {number} of 3 waited for rank 1, without an answer")
        assert "made fewer updates" in ranks[number][0]
    assert ranks[1][0] == "ended"
    assert all(still for _, still in ranks)


# -- out of memory ----------------------------------------------------------------------------------


class Small(nn.Module):
    """Runs out of memory in a pass over more samples than fit, forwards or in the middle of backward."""

    def __init__(self, fits: int, where: str) -> None:
        super().__init__()
        self.net, self.fits, self.where = model(), fits, where

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.net(x)
        if len(x) > self.fits:
            if self.where == "forward":
                raise RuntimeError(WIDE)
            self.net[0].weight.register_hook(self._fail)
        return y

    def _fail(self, gradient: Tensor) -> None:
        self.net[0].weight._backward_hooks.clear()
        raise RuntimeError(WIDE)


def replaying(rank: int, where: str, fits: tuple[int, ...]) -> Any:
    (x, _), net = data(), Small(fits[rank], where)
    wrapped = DistributedDataParallel(net)
    accumulator = gg.Accumulator(adam(net), model=wrapped)
    share = list(x.chunk(len(fits))[rank].split(12))
    for _ in range(2):
        update = accumulator.step_window(lambda rows: wrapped(rows).square().mean(), share)
    return values(net), update.micro_batch_count, accumulator.samples_that_fit


def test_when_memory_runs_out_all_replay_and_the_update_is_the_same() -> None:
    rows = [(where, fits) for where in ("forward", "backward") for fits in ((99, 3), (5, 2))]
    expected, _, _ = replaying_alone()
    for (_, fits), found in zip(rows, in_a_row(replaying, 2, rows), strict=True):
        for moved, _, _ in found:
            assert_same(moved, expected, rtol=1e-11)
        assert [fit for _, _, fit in found] == [None if most == 99 else 3 if most > 2 else 2 for most in fits]


def replaying_alone() -> Any:
    (x, _), net = data(), model()
    accumulator = gg.Accumulator(adam(net), model=net)
    for _ in range(2):
        update = accumulator.step_window(lambda rows: net(rows).square().mean(), [x])
    return values(net), update.micro_batch_count, None


def hopeless(rank: int) -> Any:
    (x, _), net = data(), Small(0 if rank else 99, "forward")
    before = values(net)
    try:
        gg.Accumulator(adam(net), model=net).step_window(lambda rows: net(rows).square().mean(), [x])
    except (gg.errors.BudgetError, RankError) as error:
        return f"{type(error).__name__}: {error}", same(values(net), before)
    return None


def test_when_one_sample_does_not_fit_on_one_rank_all_stop() -> None:
    (other, still), (own, too) = together(hopeless, 2)
    assert own.startswith("BudgetError: step: one sample alone runs out of memory")
    assert other.startswith("RankError: update: rank 1 stopped in this window: BudgetError: step: one sample")
    assert still
    assert too


# -- ranks that train something else ----------------------------------------------------------------


def differing(rank: int, whats: list[str]) -> list[str | None]:
    return [said_of(rank, what) for what in whats]


def said_of(rank: int, what: str) -> str | None:
    torch.manual_seed(rank if what == "values" else 0)
    net = nn.Linear(4, 3 + (rank == 1 and what == "shapes"))
    parameters = list(net.parameters())[: 1 if rank == 1 and what == "number" else 2]
    optimizer = torch.optim.SGD(parameters, lr=0.1 * (1 + (rank == 1 and what == "rates")))
    accumulator = gg.Accumulator(
        optimizer,
        model=net,
        clip_norm=1.0 if rank == 1 and what == "clip" else None,
    )
    try:
        with accumulator.update() as update:
            update.backward(net(torch.ones(2, 4)).mean(), count=2)
    except RankError as error:
        return str(error)
    return None


DIFFERENCES = {
    "number": "update: ranks differ in the number of parameters: ranks 0, 2: 2; rank 1: 1. Their parameters",
    "shapes": "ranks differ in the shapes of parameters: ranks 0, 2: [(3, 4), (3,)]; rank 1: [(4, 4), (4,)]",
    "values": "ranks differ in the values of parameters",
    "rates": "ranks differ in learning rates: ranks 0, 2: [0.1]; rank 1: [0.2]",
    "clip": "ranks differ in clip_norm: ranks 0, 2: None; rank 1: 1.0",
}


def test_ranks_that_differ_are_named_at_the_start() -> None:
    for rank in together(differing, 3, list(DIFFERENCES)):
        for said, message in zip(rank, DIFFERENCES.values(), strict=True):
            assert message in said
