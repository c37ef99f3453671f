"""Chosen rows under ZeroRedundancyOptimizer, where each parameter is stepped on one rank and sent to the others."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW, Optimizer

import gradgate as gg
from tests.ranks.processes import together

pytestmark = pytest.mark.slow

ROWS = [1, 2]
OPTIONS: dict[type[Optimizer], dict[str, float]] = {
    SGD: {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1},
    AdamW: {"lr": 0.1, "weight_decay": 0.1},
}


def trained(kind: type[Optimizer], *, divided: bool, rows_first: bool) -> tuple[Tensor, list[Tensor]]:
    """Train; return which rows of the embedding moved, and all values."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # importing it uses torch.jit, which is deprecated
        from torch.distributed.optim import ZeroRedundancyOptimizer
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(6, 3), nn.Linear(3, 2))
    before = net[0].weight.detach().clone()
    if rows_first:
        gg.train_rows(net[0], ROWS)
    options: dict[str, Any] = OPTIONS[kind]
    optimizer = (
        ZeroRedundancyOptimizer(net.parameters(), optimizer_class=kind, **options)
        if divided
        else kind(net.parameters(), **options)
    )
    if not rows_first:
        gg.train_rows(net[0], ROWS)
    called = DistributedDataParallel(net)
    for _ in range(3):
        optimizer.zero_grad()
        called(torch.arange(6)).sin().sum().backward()
        optimizer.step()
    values = [each.detach().clone() for each in net.parameters()]
    return (values[0] != before).any(1), values


def on_a_rank(rank: int) -> list[bool]:
    found = []
    for kind in OPTIONS:
        for rows_first in (False, True):
            moved, values = trained(kind, divided=True, rows_first=rows_first)
            _, whole = trained(kind, divided=False, rows_first=rows_first)
            found.append(moved.nonzero()[:, 0].tolist() == ROWS and all(map(torch.equal, values, whole)))
    return found


def test_only_the_chosen_rows_move_on_all_ranks_as_without_it() -> None:
    assert together(on_a_rank, 2) == [[True] * 4] * 2
