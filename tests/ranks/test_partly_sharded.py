"""Models of which ``fully_shard`` shards only a part, and ranks that raise between its passes."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradgate as gg
from gradgate.errors import RankError
from tests.ranks.processes import in_a_row, together
from tests.ranks.work import SAMPLES, data, model
from tests.reference import assert_same

pytestmark = pytest.mark.slow
SHARES = [range(5), range(5, SAMPLES)]


def partly(how: str) -> nn.Sequential:
    from torch.distributed.fsdp import fully_shard

    net = model()
    if how == "ignored":
        fully_shard(net, ignored_params={net[2].weight})
    else:
        fully_shard(net[0])
    return net


def momentum(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def trained(net: nn.Module, rank: int, **options: Any) -> list[Tensor]:
    accumulator, (x, y) = gg.Accumulator(momentum(net), model=net, clip_norm=0.5, **options), data()
    for _ in range(3):
        with accumulator.update() as update:
            for rows in update.micro_batches(torch.tensor(SHARES[rank]).split(4)):
                update.backward(F.cross_entropy(net(x[rows]), y[rows]), count=len(rows))
    values: list[Any] = [parameter.detach() for parameter in net.parameters()]
    return [value.full_tensor() if hasattr(value, "full_tensor") else value for value in values]


OPTIONS: list[dict[str, Any]] = [
    {},
    {"sync": "every"},
    {"clear": "zero"},
    {"clear": gg.decay(0.5)},
]


def partly_trained(rank: int, how: str) -> list[list[Tensor]]:
    return [trained(partly(how), rank, **options) for options in OPTIONS]


def test_gradients_of_parameters_that_are_not_sharded_are_added_over_ranks() -> None:
    ignored, not_wrapped = in_a_row(partly_trained, 2, [("ignored",), ("not wrapped",)])
    for found in (*ignored, *not_wrapped):
        for options, values in zip(OPTIONS, found, strict=True):
            net, (x, y), before = model(), data(), []
            optimizer = momentum(net)
            for _ in range(3):
                optimizer.zero_grad()
                F.cross_entropy(net(x), y).backward()
                for parameter, gradient in zip(net.parameters(), before, strict=False):
                    parameter.grad += 0.5 * gradient  # type: ignore[operator]
                nn.utils.clip_grad_norm_(net.parameters(), 0.5)
                optimizer.step()
                if isinstance(options.get("clear"), str | None):
                    continue
                before = [parameter.grad.clone() for parameter in net.parameters()]  # type: ignore[union-attr]
            assert_same(values, [parameter.detach() for parameter in net.parameters()])


def reached_in_part(rank: int, sparse: bool) -> Tensor:
    """Train a model of which only the part that is not sharded is used."""
    from torch.distributed.fsdp import fully_shard

    net = nn.ModuleList([nn.Embedding(3, 2, sparse=sparse), nn.Linear(2, 2)]).double()
    fully_shard(net[1])
    table: Any = net[0]
    nn.init.zeros_(table.weight)
    accumulator = gg.Accumulator(torch.optim.SGD(net.parameters(), lr=1.0), model=net)
    with accumulator.update() as update:
        for rows in update.micro_batches([torch.tensor([0])] if rank else [torch.tensor([0, 1, 1])]):
            update.backward(table(rows).sum(1).mean(), count=len(rows))
    assert update.grad_norm == pytest.approx(1.0)
    return table.weight.detach()


def test_only_the_part_that_is_not_sharded_may_be_reached() -> None:
    dense, sparse = in_a_row(reached_in_part, 2, [(False,), (True,)])
    for found in (*dense, *sparse):
        assert_same([found], [torch.tensor([[-0.5] * 2, [-0.5] * 2, [0.0] * 2], dtype=torch.float64)])


def wrapped_twice(rank: int) -> str:
    net = partly("not wrapped")
    net[2] = DistributedDataParallel(net[2])
    with pytest.raises(RankError) as raised:
        trained(net, rank)
    return str(raised.value)


def test_a_model_under_both_wrappers_is_refused() -> None:
    assert all("others under DistributedDataParallel" in said for said in together(wrapped_twice, 2))


def raising(rank: int, then: str) -> list[Any]:
    from torch.distributed.fsdp import fully_shard

    net, (x, y) = model(), data()
    fully_shard(net)
    accumulator = gg.Accumulator(momentum(net), model=net)
    said = []
    for number in range(2):
        try:
            with accumulator.update() as update:
                for rows in update.micro_batches(torch.tensor(SHARES[rank]).split(10)):
                    update.backward(F.cross_entropy(net(x[rows]), y[rows]), count=len(rows))
                if number == rank == 0:
                    raise (ValueError if then == "reported" else KeyboardInterrupt)("stop")
        except (ValueError, RankError, KeyboardInterrupt) as error:  # noqa: PERF203
            said.append(f"{type(error).__name__}: {error}")
            if "different places" in str(error):
                break
    return said


def test_a_rank_that_raises_after_the_last_pass_is_an_error_on_the_others_and_all_go_on() -> None:
    first, second = together(raising, 2, "reported")
    assert first == ["ValueError: stop"]
    (said,) = second
    assert "RankError" in said
    assert "rank 0 stopped in this window: ValueError: stop" in said


def test_ranks_at_different_places_are_told_so() -> None:
    first, second = together(raising, 2, "not reported")
    assert first[0] == "KeyboardInterrupt: stop"
    for said in (first[1], second[0]):
        assert said.startswith("RankError: update: ranks")
        assert "at different points of their loops" in said
