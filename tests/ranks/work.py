"""A model, data, and one update of them over ranks: what the tests of ranks share."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradgate as gg

Cut = Sequence[Sequence[Sequence[int]]]
"""For each rank the micro-batches of its window, each the numbers of its samples."""

SAMPLES = 24


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES, 4, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, (SAMPLES,), generator=generator)


def model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def adam(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(module.parameters(), lr=0.1)


def values(module: nn.Module) -> list[Tensor]:
    return [one.detach().clone() for one in module.parameters()]


def of_one_process(updates: Sequence[Sequence[int]], **options: Any) -> list[Tensor]:
    """The slow truth: whole batches, one process, plain autograd."""
    net, (x, y) = model(), data()
    optimizer = adam(net)
    for rows in updates:
        optimizer.zero_grad()
        F.cross_entropy(net(x[list(rows)]), y[list(rows)]).backward()
        if "clip_norm" in options:
            nn.utils.clip_grad_norm_(net.parameters(), options["clip_norm"])
        optimizer.step()
    return values(net)


def over_ranks(rank: int, cuts: Sequence[Cut], wrapped: bool, options: dict[str, Any]) -> dict[str, Any]:
    """Make the updates that are cut in this way, and say what came out."""
    net, (x, y) = model(), data()
    called = DistributedDataParallel(net) if wrapped else net
    accumulator = gg.Accumulator(adam(net), model=called, **options)
    told = []
    for cut in cuts:
        with accumulator.update() as update:
            for rows in update.micro_batches(cut[rank]):
                loss = F.cross_entropy(called(x[list(rows)]), y[list(rows)])
                update.backward(loss, count=len(rows))
        told.append((update.loss, update.count, update.grad_norm))
    return {"values": values(net), "told": told}


def mean_of_means(rank: int, cuts: Sequence[Cut]) -> dict[str, Any]:
    """Known to be wrong: what DDP makes of unequal ranks, and the usual loop of unequal micro-batches."""
    net, (x, y) = model(), data()
    called, optimizer = DistributedDataParallel(net), adam(net)
    for cut in cuts:
        optimizer.zero_grad()
        for rows in cut[rank]:
            (F.cross_entropy(called(x[list(rows)]), y[list(rows)]) / len(cut[rank])).backward()
        optimizer.step()
    return {"values": values(net)}
