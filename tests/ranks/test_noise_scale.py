"""Over ranks, the noise scale compares the first micro-batch of each rank with the window of all."""

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradgate as gg
from gradgate.errors import OptionError
from tests.ranks.processes import in_turn

pytestmark = pytest.mark.slow

# For each window and rank, the rows of its micro-batches: unequal, one only, an empty first one, and none at all.
WINDOWS = [
    [[[0, 1], [2, 3, 4]], [[5], [6, 7, 8]]],
    [[[0, 1, 2]], [[3, 4]]],
    [[[0], [1, 2]], [[], [3, 4, 5]]],
    [[[0, 1], [2]], []],
]


def data() -> Tensor:
    return torch.randn(9, 3, generator=torch.Generator().manual_seed(0)).double()


def linear() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(3, 2, bias=False).double()


def measured(rank: int, way: str) -> dict[str, object]:
    model = linear()
    wrapped = DistributedDataParallel(model) if way != "plain" else model
    noise = gg.NoiseScale(decay=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    accumulator = gg.Accumulator(optimizer, model=wrapped, clip_norm=1e-3, noise_scale=noise)
    x = data()
    for window in WINDOWS:
        with accumulator.update() as update:
            for rows in update.micro_batches(window[rank]):
                update.backward(wrapped(x[rows]).square().sum(1).sum(), count=len(rows), reduction="sum")
    return noise.state_dict()


def expected() -> tuple[float, float, float]:
    """The weight, and the averages of |G|^2 and tr(Sigma) times it, from plain gradients."""
    weight = square = trace = 0.0
    for window in WINDOWS:
        small, items = zip(
            *(
                (norm(rank_window), len(rows))
                for rank_window in window
                for rows in [first(rank_window)]
                if rows
            ),
            strict=True,
        )
        pooled = sum(a * b for a, b in zip(small, items, strict=True)) / sum(items)
        count, everything = sum(items) / len(items), [row for rank in window for part in rank for row in part]
        large, total = gradient(everything).square().sum().item(), len(everything)
        weight = 0.5 * weight + (total - count)
        square = 0.5 * square + (total * large - count * pooled)
        trace = 0.5 * trace + (total - count) * (pooled - large) / (1 / count - 1 / total)
    return weight, square, trace


def first(rank_window: list[list[int]]) -> list[int]:
    return next((rows for rows in rank_window if rows), [])


def norm(rank_window: list[list[int]]) -> float:
    return gradient(first(rank_window)).square().sum().item()


def gradient(rows: list[int]) -> Tensor:
    model = linear()
    model(data()[rows]).square().sum(1).mean().backward()
    grad = next(model.parameters()).grad
    assert grad is not None
    return grad


def sharded(rank: int) -> str:
    model = linear()
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    accumulator = gg.Accumulator(optimizer, model=model, noise_scale=gg.NoiseScale())
    try:
        with accumulator.update():
            pass
    except OptionError as error:
        return str(error)
    return "not refused"


def test_ranks_agree_with_plain_gradients_and_sharded_parameters_are_refused() -> None:
    *measurements, refusals = in_turn(2, [(measured, "plain"), (measured, "ddp"), (sharded,)])
    for one, other in measurements:
        assert one == other
        found = one["weight"], one["square"], one["trace"]
        assert found == pytest.approx(expected(), rel=1e-12)
        assert (one["updates"], one["skipped"]) == (len(WINDOWS), {})
    assert all("sharded over ranks" in text for text in refusals)
