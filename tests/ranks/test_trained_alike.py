"""What is frozen or chosen on some ranks only is an error on all of them, before anything is stepped."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradgate as gg
from gradgate.errors import RankError
from tests.ranks.processes import in_a_row, together
from tests.ranks.work import adam, data, model, values

pytestmark = pytest.mark.slow

ON_RANKS: dict[str, Callable[[int, nn.Sequential], Any]] = {
    "frozen on one": lambda rank, net: gg.frozen(net[0]) if rank else None,
    "without a gradient on one": lambda rank, net: net[0].bias.requires_grad_(bool(rank)),
    "rows on one": lambda rank, net: gg.train_rows(net[2], [0]) if rank else None,
    "other rows": lambda rank, net: gg.train_rows(net[2], [rank]),
}


def train(rank: int, name: str | None, wrapped: bool) -> Any:
    net, (x, _) = model(), data()
    called = DistributedDataParallel(net) if wrapped else net
    accumulator = gg.Accumulator(adam(net), model=called)
    batch = x.tensor_split(2)[rank]

    def update() -> None:
        accumulator.step_window(lambda part: called(part).square().mean(), list(batch.split(3)))

    if name is None:
        with gg.frozen(net[0]), gg.train_rows(net[2], [1, 0]):
            update()
        return values(net)
    update()
    before, _ = values(net), ON_RANKS[name](rank, net)
    with pytest.raises(RankError, match="do not train the same"):
        update()
    return all(map(torch.equal, values(net), before))


def test_ranks_that_do_not_train_the_same_do_not_step() -> None:
    rows = [(name, wrapped) for name in ON_RANKS for wrapped in (False, True)]
    for row, unchanged in zip(rows, in_a_row(train, 2, rows), strict=True):
        assert unchanged == [True, True], row


def sharded_while_frozen(rank: int) -> list[bool]:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    handle = gg.frozen(net[0])
    fully_shard(net)
    required = [net[0].weight.requires_grad]
    handle.unfreeze()
    return [*required, net[0].weight.requires_grad]


def test_a_module_that_was_sharded_while_frozen_is_unfrozen() -> None:
    assert together(sharded_while_frozen, 1) == [[False, True]]
