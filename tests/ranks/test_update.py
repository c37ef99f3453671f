"""Law 1 over ranks: the update of one process, however samples are dealt to ranks and micro-batches."""

import random
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradgate as gg
from gradgate.errors import GraphError
from tests.ranks.processes import in_a_row, in_turn, together
from tests.ranks.work import (
    SAMPLES,
    Cut,
    adam,
    mean_of_means,
    model,
    of_one_process,
    over_ranks,
    values,
)
from tests.reference import assert_same

pytestmark = pytest.mark.slow


def dealt(seed: int, ranks: int) -> Cut:
    """Deal all samples, in any order, to ranks and micro-batches of any size; some ranks get nothing."""
    dice = random.Random(seed)
    rows = dice.sample(range(SAMPLES), SAMPLES)
    edges = sorted([0, SAMPLES, *(dice.choice([0, dice.randrange(SAMPLES)]) for _ in range(ranks - 1))])
    cut = []
    for start, end in pairwise(edges):
        inner = sorted({start, end, *(dice.randint(start, end) for _ in range(dice.randrange(4)))})
        cut.append([rows[a:b] for a, b in pairwise(inner)])
    dice.shuffle(cut)
    return cut


def everybody(cut: Cut) -> list[int]:
    return [row for rank in cut for rows in rank for row in rows]


def cuts_over(ranks: int) -> list[Cut]:
    return [dealt(seed, ranks) for seed in range(12)]


@cache
def made_by(ranks: int) -> dict[bool, list[Any]]:
    """What each rank returned, with DDP or without it."""
    rows = [(cuts_over(ranks), wrapped, {"clip_norm": 0.5}) for wrapped in (False, True)]
    return dict(zip((False, True), in_a_row(over_ranks, ranks, rows), strict=True))


@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "DDP"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_any_cut_over_ranks_gives_the_update_of_one_process(ranks: int, wrapped: bool) -> None:
    cuts = cuts_over(ranks)
    found = made_by(ranks)[wrapped]
    expected = of_one_process([everybody(cut) for cut in cuts], clip_norm=0.5)
    for rank in found:
        assert_same(rank["values"], expected, rtol=1e-11)  # 12 steps of Adam, which divides by small numbers
        assert [count for _, count, _ in rank["told"]] == [SAMPLES] * len(cuts)
        assert rank["told"] == found[0]["told"]
        assert all(torch.equal(a, b) for a, b in zip(rank["values"], found[0]["values"], strict=True))


EVEN = [[[0, 1, 2, 3], [4, 5]], [[6, 7], [8, 9]]]


# -- windows whose losses reach no parameter ---------------------------------------------------------


def reached_by(rank: int, wrap: str) -> list[list[float]]:
    """Make a window in which both ranks reach the model, one in which none does, and one in which rank 1 does."""
    from torch.distributed.fsdp import fully_shard

    net, other = nn.Linear(2, 1, bias=False).double(), nn.Parameter(torch.ones(1, dtype=torch.float64))
    nn.init.zeros_(net.weight)
    called: Any = {"nothing": lambda net: net, "DDP": DistributedDataParallel, "fully_shard": fully_shard}[
        wrap
    ](net)
    optimizer = torch.optim.SGD(called.parameters(), lr=1.0, momentum=0.5)
    accumulator, x = (
        gg.Accumulator(optimizer, model=called, clear="zero"),
        torch.ones(1, 2, dtype=torch.float64),
    )

    def update(reaches: bool) -> list[float]:
        with accumulator.update() as update:
            output = called(x)
            update.backward((output if reaches else output.detach() + other).sum(), count=1)
        weight: Any = net.weight.detach()
        return list(getattr(weight, "full_tensor", lambda: weight)().flatten().tolist())

    found = [update(True)]
    with pytest.raises(GraphError, match="no parameter that the optimizer owns received a gradient"):
        update(False)
    return [*found, update(rank == 1 or wrap == "fully_shard")]  # whose passes need all ranks


WRAPS = ["nothing", "DDP", "fully_shard"]


# -- what else a window may hold --------------------------------------------------------------------


def two_losses(rank: int, counts: Any) -> Any:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    accumulator = gg.Accumulator(torch.optim.SGD([weight], lr=1.0), model=nn.ParameterList([weight]))
    with accumulator.update() as update:
        for name, gradient, count in counts[rank]:
            update.backward((weight * gradient).sum(), count=count, name=name)
    return weight.tolist(), {name: (one.total, one.count) for name, one in update.losses.items()}


COUNTS = [[("a", 1.0, 3), ("b", 10.0, 1)], [("b", 30.0, 3)]]


def partly_used(rank: int) -> Any:
    """Each rank reaches another part: gradients that only one of them has."""
    torch.manual_seed(0)
    parts = nn.ModuleList(nn.Linear(2, 1, bias=False) for _ in range(3)).double()
    embedding = nn.Embedding(4, 2, sparse=True, dtype=torch.float64)
    for one in (*parts.parameters(), *embedding.parameters()):
        nn.init.zeros_(one)
    optimizer = torch.optim.SGD([*parts.parameters(), *embedding.parameters()], lr=1.0)
    with gg.Accumulator(optimizer, model=[parts, embedding]).update() as update:
        x = torch.ones(rank + 1, 2, dtype=torch.float64)
        words = embedding(torch.arange(rank + 1)).sum() / (rank + 1) if rank else 0.0
        update.backward(parts[rank](x).mean() + words, count=rank + 1)
    return [one.weight.tolist() for one in (*parts, embedding)]


def with_nonfinite(rank: int, nonfinite: str) -> Any:
    net = model().float()
    accumulator = gg.Accumulator(adam(net), model=net, nonfinite=nonfinite)  # type: ignore[arg-type]
    before = values(net)
    x = torch.full((2, 4), float("inf") if rank == 1 else 1.0)
    with accumulator.update() as update:
        update.backward(net(x).square().mean(), count=2)
    return update.stepped, all(torch.equal(a, b) for a, b in zip(values(net), before, strict=True))


def with_scaler(rank: int, overflow: bool) -> Any:
    net = model().float()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    accumulator = gg.Accumulator(torch.optim.SGD(net.parameters(), lr=1.0), model=net, scaler=scaler)
    x = torch.ones(2 + rank, 4)
    with accumulator.update() as update:
        loss = net(x).square().mean() * (float("inf") if overflow and rank else 1.0)
        update.backward(loss, count=len(x))
    return update.stepped, scaler.get_scale(), update.grad_norm, values(net)


def with_batch_norm(rank: int) -> Any:
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))
    accumulator = gg.Accumulator(torch.optim.SGD(net.parameters(), lr=0.1), model=net)
    for _ in range(2):
        with accumulator.update() as update:
            for _ in update.micro_batches(range(1 + 2 * rank)):  # uneven: nobody may wait in a forward pass
                update.backward(net(torch.randn(4, 3) + rank).square().mean(), count=4)
    return [one.tolist() for one in net.module[1].buffers()], net.require_backward_grad_sync


@cache
def on_two_ranks() -> dict[str, list[Any]]:
    """What both ranks returned, one window after the other: starting ranks takes longer than all of these."""
    calls: dict[str, tuple[Any, ...]] = {
        "mean of means": (mean_of_means, [EVEN]),
        **{f"reached, {wrap}": (reached_by, wrap) for wrap in WRAPS},
        "two losses": (two_losses, COUNTS),
        "partly used": (partly_used,),
        "skip": (with_nonfinite, "skip"),
        "raise": (with_nonfinite, "raise"),
        "overflow": (with_scaler, True),
        "scaler": (with_scaler, False),
        "batch norm": (with_batch_norm,),
    }
    return dict(zip(calls, in_turn(2, list(calls.values())), strict=True))


def test_the_law_rejects_the_mean_of_means() -> None:
    with pytest.raises(AssertionError, match="off by"):
        assert_same(on_two_ranks()["mean of means"][0]["values"], of_one_process([everybody(EVEN)]))


@pytest.mark.parametrize("wrap", WRAPS)
def test_zeros_are_a_gradient_only_if_a_rank_has_added_to_them(wrap: str) -> None:
    for found in on_two_ranks()[f"reached, {wrap}"]:
        assert found == [[-1.0] * 2, [-2.5 if wrap == "fully_shard" else -2.0] * 2]


def test_several_losses_are_each_averaged_over_all_ranks_even_those_that_some_do_not_have() -> None:
    expected = -(1.0 * 3 / 3 + (10.0 * 1 + 30.0 * 3) / 4)
    for weight, losses in on_two_ranks()["two losses"]:
        assert weight == [expected] * 3
        assert {name: count for name, (_, count) in losses.items()} == {"a": 3, "b": 4}


def test_a_gradient_that_only_one_rank_has_reaches_all_of_them_sparse_ones_too() -> None:
    for first, second, unused, embedding in on_two_ranks()["partly used"]:
        assert first == [[-1 / 3, -1 / 3]]
        assert second == [[-2 / 3, -2 / 3]]
        assert unused == [[0.0, 0.0]]
        assert embedding == [[-1 / 3, -1 / 3], [-1 / 3, -1 / 3], [0.0, 0.0], [0.0, 0.0]]


def test_what_is_not_finite_on_one_rank_is_acted_on_by_all() -> None:
    assert on_two_ranks()["skip"] == [(False, True), (False, True)]
    assert [type(one).__name__ for one in on_two_ranks()["raise"]] == ["NonfiniteError"] * 2


def test_a_scaler_scales_alike_on_all_ranks_also_after_an_overflow_on_one() -> None:
    for stepped, scale, _, _ in on_two_ranks()["overflow"]:
        assert (stepped, scale) == (False, 512.0)
    (_, _, norm, first), (stepped, scale, other_norm, second) = on_two_ranks()["scaler"]
    assert (stepped, scale, norm) == (True, 1024.0, other_norm)
    net = model().float()
    net(torch.ones(5, 4)).square().mean().backward()
    assert norm == pytest.approx(
        float(nn.utils.get_total_norm([one.grad for one in net.parameters()])), rel=1e-5
    )
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.filterwarnings("ignore")
def test_buffers_follow_the_first_rank_and_the_wrapper_is_given_back() -> None:
    (first, sync), (second, _) = on_two_ranks()["batch norm"]
    assert first == second
    assert sync


def on_a_part(rank: int) -> Any:
    group = torch.distributed.new_group([0, 1])
    net = model()
    accumulator = gg.Accumulator(adam(net), model=net, ranks=group if rank < 2 else False)
    x = torch.ones(2, 4, dtype=torch.float64)
    return accumulator.step_window(lambda x: F.mse_loss(net(x), x[:, :3]), [x]).count


def test_a_group_trains_together_and_another_process_alone() -> None:
    assert together(on_a_part, 3) == [12, 12, 6]
