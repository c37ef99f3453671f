"""What a plan makes of batches: every sample once, padding trimmed, within the budget, in the batch's own types."""

from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import gradgate as gg

# private: how a size in bytes is read, whatever its unit
from gradgate.byte_sizes import as_bytes
from gradgate.errors import BudgetError, CountError
from tests.messages import raises

WIDTH = 12


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


@dataclass
class Record:
    x: Tensor
    y: Tensor
    name: str = "batch"


class Encoding(UserDict):
    """As tokenizers return it: a mapping that is no dict."""


def padded(lengths: list[int], *, left: bool = False, width: int = WIDTH) -> tuple[Tensor, Tensor]:
    """Sequences 1, 2, 3 ... of some lengths, 0 where they are padded; and their mask."""
    columns = torch.arange(width)[None]
    size = torch.tensor(lengths)[:, None]
    mask = columns >= width - size if left else columns < size
    values = columns - (width - size) if left else columns
    return torch.where(mask, values + 1 + 100 * torch.arange(len(lengths))[:, None], 0), mask.long()


WEIGHT = nn.Parameter(torch.ones((), dtype=torch.double))


def length_loss(ids: Callable[[Any], Tensor]) -> Callable[[Any], Tensor]:
    return lambda batch: (WEIGHT * ids(batch)).square().mean()


KINDS = {
    "tuple": (lambda x, m: (x, m), lambda b: b[0]),
    "list": (lambda x, m: [x, m], lambda b: b[0]),
    "dict": (lambda x, m: {"x": x, "y": m}, lambda b: b["x"]),
    "named tuple": (lambda x, m: Pair(x, m), lambda b: b.x),
    "dataclass": (lambda x, m: Record(x, m), lambda b: b.x),
    "encoding": (lambda x, m: Encoding(x=x, y=m), lambda b: b["x"]),
    "tensor": (lambda x, m: x, lambda b: b),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_every_sample_is_there_once_and_trimmed_in_the_batchs_own_type(kind: str, left: bool) -> None:
    lengths = [3, 12, 1, 7, 7, 2, 9, 4]
    x, mask = padded(lengths, left=left)
    make, ids = KINDS[kind]
    batch = make(x, mask)
    # What is on the left is trimmed only if it is named.
    fields: dict[str, list[Any]] = {"tuple": [0, 1], "list": [0, 1], "tensor": [()]}
    trim = fields.get(kind, ["x", "y"]) if left else None
    plan = gg.plan(length_loss(ids), batch, budget_bytes="800 B", lengths=mask, trim=trim)
    cut = plan.split(batch)
    assert sorted(index for micro in cut for index in micro.indices) == list(range(8))
    for micro in cut:
        assert type(micro.data) is type(batch)
        rows = ids(micro.data)
        assert rows.shape == (len(micro.indices), micro.length)
        assert micro.length == max(lengths[index] for index in micro.indices)
        assert micro.count == sum(lengths[index] for index in micro.indices)
        for row, index in zip(rows, micro.indices, strict=True):
            assert row[row > 0].tolist() == x[index][x[index] > 0].tolist()
    assert len(cut) == len(plan.parts)


@given(
    lengths=st.lists(st.integers(1, WIDTH), min_size=1, max_size=30),
    budget=st.integers(700, 4000),
)
def test_micro_batches_are_within_the_budget_and_deterministic(lengths: list[int], budget: int) -> None:
    x, mask = padded(lengths)
    plan = gg.plan(length_loss(lambda b: b), x, budget_bytes=budget, lengths=mask)
    cut = plan.split(x)
    assert sorted(index for micro in cut for index in micro.indices) == list(range(len(lengths)))
    assert all(plan.resident.total_bytes + micro.peak_bytes <= budget for micro in cut)
    assert [micro.indices for micro in cut] == [micro.indices for micro in plan.split(x)]
    assert 0 <= cut.padding < 1


def test_outputs_can_be_put_back_in_order() -> None:
    x, mask = padded([3, 12, 1, 7, 7, 2, 9, 4])
    cut = gg.plan(length_loss(lambda b: b), x, budget_bytes="800 B", lengths=mask).split(x)
    assert len(cut) > 1
    outputs = [micro.data.amax(1) for micro in cut]
    assert cut.in_order(outputs).tolist() == x.amax(1).tolist()


def test_equal_samples_are_cut_evenly_in_order_and_without_a_copy() -> None:
    model, batch = nn.Linear(8, 1), torch.randn(100, 8)
    plan = gg.plan(lambda x: model(x).mean(), batch, budget_bytes=255)
    cut = plan.split(batch)
    assert [len(micro.indices) for micro in cut] == [34, 33, 33]
    assert torch.equal(torch.cat([micro.data for micro in cut]), batch)
    assert all(one.data.untyped_storage().data_ptr() == batch.untyped_storage().data_ptr() for one in cut)
    assert [micro.count for micro in cut] == [34, 33, 33]


def test_raw_samples_are_collated() -> None:
    samples = [list(range(1, length + 1)) for length in (5, 2, 9, 2, 5, 1)]

    def collate(some: list[list[int]]) -> Tensor:
        return nn.utils.rnn.pad_sequence([torch.tensor(one) for one in some], batch_first=True)

    plan = gg.plan(length_loss(lambda b: b), samples, budget_bytes="700 B", lengths=len, collate=collate)
    cut = plan.split(samples)
    assert len(cut) > 1
    for micro in cut:
        assert micro.data.shape == (len(micro.indices), max(len(samples[index]) for index in micro.indices))
        assert micro.count == sum(len(samples[index]) for index in micro.indices)
    assert sorted(index for micro in cut for index in micro.indices) == list(range(6))


def test_a_sample_that_cannot_fit_is_named() -> None:
    x, mask = padded([3, 12, 1])
    with raises(BudgetError, "a text beyond the budget", "sample 1, of length 12"):
        gg.plan(length_loss(lambda b: b), x, budget_bytes=250, lengths=mask)
    with raises(BudgetError, "a budget below the model"):
        gg.plan(length_loss(lambda b: b), x, budget_bytes=10, lengths=mask)


def test_a_plan_learns_from_a_micro_batch_that_did_not_fit() -> None:
    model, batch = nn.Linear(8, 1), torch.randn(64, 8)
    plan = gg.plan(lambda x: model(x).mean(), batch, budget_bytes="1MiB")
    cut = plan.split(batch)
    assert len(cut) == 1
    finer = plan.finer(cut, 0)
    assert max(len(micro.indices) for micro in finer) <= 33
    assert [len(micro.indices) for micro in plan.split(batch)] == [len(micro.indices) for micro in finer]
    kept = plan.finer(finer, 1, keep=1)
    assert kept[0].indices == finer[0].indices
    assert sorted(index for micro in kept for index in micro.indices) == list(range(64))


def test_memory_that_runs_out_all_the_same_is_made_good_by_step() -> None:
    torch.manual_seed(0)
    model, batch = nn.Linear(3, 1).double(), torch.randn(20, 3).double()
    whole = torch.autograd.grad(model(batch).square().mean(), list(model.parameters()))
    seen: list[int] = []

    def loss_fn(x: Tensor) -> Tensor:
        if type(x) is Tensor:
            seen.append(len(x))
            if len(x) > 6:
                raise torch.OutOfMemoryError("CUDA out of memory.")
        return model(x).square().mean()

    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = [one.detach().clone() for one in model.parameters()]
    plan = gg.plan(loss_fn, batch, budget_bytes="1MiB")
    update = gg.Accumulator(optimizer, model=model).step(loss_fn, batch, plan=plan)
    assert seen[0] == 20
    assert max(seen[-update.micro_batch_count :]) <= 6
    for old, now, gradient in zip(before, model.parameters(), whole, strict=True):
        torch.testing.assert_close(old - now, gradient, rtol=1e-12, atol=1e-14)
    assert len(plan.split(batch)) == update.micro_batch_count


@pytest.mark.parametrize("fits", [1, 2, 3])
def test_fewer_samples_are_tried_where_most_of_the_memory_does_not_depend_on_them(fits: int) -> None:
    """Half of the estimated bytes would still be those of as many samples, and no replay would be the last."""
    weight = nn.Parameter(torch.ones(4, dtype=torch.double))
    batch = torch.arange(8, dtype=torch.double)
    seen: list[int] = []
    planned = False

    def loss_fn(x: Tensor) -> tuple[Tensor, int]:
        if planned:
            seen.append(len(x))
            if len(x) > fits:
                raise torch.OutOfMemoryError("CUDA out of memory.")
        large = (weight.repeat(50_000) * 2).square().mean()
        return large + (weight[0] * x).mean(), len(x)

    plan = gg.plan(loss_fn, batch, budget_bytes="100MiB")
    planned = True
    accumulator = gg.Accumulator(torch.optim.SGD([weight], lr=1.0), model=nn.ParameterList([weight]))
    update = accumulator.step(loss_fn, batch, plan=plan)
    assert seen[0] == 8
    assert max(seen[-update.micro_batch_count :]) <= fits
    assert weight[0].item() == pytest.approx(
        1 - (2 + 3.5), rel=1e-12
    )  # (4 w²).mean() over four w, and the batch


def test_a_count_that_the_graph_does_not_tell_is_asked_for_with_a_plan_too() -> None:
    """The plan's own count, of valid items, would be 10 to 15 % off under label smoothing or an auxiliary term."""
    x, mask = padded([3, 12, 1, 7])
    weight = nn.Parameter(torch.ones((), dtype=torch.double))

    def loss_fn(batch: dict[str, Tensor]) -> Tensor:
        valid = batch["mask"]
        return weight * (batch["x"] * valid).double().sum() / valid.sum() + 0.1 * weight

    batch = {"x": x, "mask": mask}
    plan = gg.plan(loss_fn, batch, budget_bytes=400, lengths="mask")
    assert len(plan.parts) > 1
    accumulator = gg.Accumulator(torch.optim.SGD([weight], lr=1.0))
    with raises(CountError, "a step without a count"):
        accumulator.step(loss_fn, batch, plan=plan)
    assert weight.item() == 1.0
    accumulator.step(lambda b: (loss_fn(b), b["mask"].sum()), batch, plan=plan)
    whole = int((x * mask).sum()) / int(mask.sum()) + 0.1
    assert weight.item() == pytest.approx(1 - whole, rel=1e-12)


def test_a_model_that_mixes_samples_is_said_to() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    batch = torch.randn(16, 4)
    assert "batch norm mixes the samples" in str(
        gg.plan(lambda x: model(x).mean(), batch, budget_bytes="1MiB")
    )
    model.eval()
    assert "mixes" not in str(gg.plan(lambda x: model(x).mean(), batch, budget_bytes="1MiB"))


def test_a_plan_is_worth_reading() -> None:
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    plan = gg.plan(lambda x: model(x).mean(), torch.randn(64, 8), budget_bytes="12 KiB", optimizer=optimizer)
    assert str(plan).splitlines() == [
        "budget       12 KiB",
        "  parameters 1.25 KiB, including buffers",
        "  gradients  1.25 KiB",
        "  optimizer  2.52 KiB",
        "  one pass   6.01 KiB at most",
        "peak         11 KiB (92% of the budget)",
        "",
        "split        64 samples in 4 micro-batches: 4 x 16",
    ]


@pytest.mark.parametrize(
    ("budget", "number"),
    [("8GiB", 8 << 30), ("500 MB", 500_000_000), ("1.5kib", 1536), (1e6, 1_000_000), ("12 B", 12)],
)
def test_budgets_are_numbers_or_texts(budget: float | str, number: int) -> None:
    assert as_bytes(budget) == number


def test_without_a_budget_what_is_free_counts() -> None:
    model, batch = nn.Linear(4, 1), torch.randn(16, 4)
    plan = gg.plan(lambda x: model(x).mean(), batch)
    assert plan.budget_bytes > 1 << 20
