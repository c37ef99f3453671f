"""Meshes: over whichever processes the gradients of parameters are reduced, the update is that of one process."""

import itertools
import os
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import gradgate as gg
from gradgate.errors import RankError
from tests.ranks.processes import TIMEOUT_SECONDS, in_a_row
from tests.ranks.test_sharded import with_work_for_all
from tests.ranks.test_update import everybody
from tests.ranks.work import Cut, data
from tests.reference import assert_same

pytestmark = pytest.mark.slow

PROCESSES = 4
DRAWN = 12 if os.environ.get("HYPOTHESIS_PROFILE", "suite") == "suite" else 200


@dataclass(frozen=True)
class Layout:
    """A mesh, how a model is wrapped over it, and how data is dealt."""

    shape: tuple[int, ...]
    names: tuple[str, ...]  # what each dimension of the mesh is for; along "other", models train apart
    wrap: str
    sync: str
    seed: int

    @property
    def data_names(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if name in ("replicate", "shard"))


def shapes(processes: int) -> list[tuple[int, ...]]:
    sizes = [size for size in range(1, processes + 1) if processes % size == 0]
    triples = [s for s in itertools.product(sizes, repeat=3) if s[0] * s[1] * s[2] == processes]
    return [*triples, *(s[:2] for s in triples if s[2] == 1), (processes,)]


def drawn(seed: int) -> Layout:
    """Draw a layout. torch slices a mesh in the order of its dimensions, and replicates over the first of two."""
    choose = random.Random(seed).choice
    shape = choose(shapes(PROCESSES))
    uses = itertools.permutations(("replicate", "shard", "tensor", "other"), len(shape))
    names = choose([use for use in uses if "shard" in use and "replicate" not in use[use.index("shard") :]])
    wraps = ["layers"] if "tensor" in names else ["layers", "one layer", "without a bias"]
    if "replicate" in names and not {"tensor", "other"} & {*names}:
        wraps += ["root over a flat mesh"] * 3
    if not {"tensor", "replicate"} & {*names}:
        wraps += ["ddp", "none"]
    wrap = choose(wraps)
    sync = "last" if wrap in ("ddp", "none") else choose(["last", "every"])
    return Layout(shape, names, wrap, sync, seed)


def even() -> nn.Sequential:
    """A model whose layers can be halved: what torch asks of tensor parallelism."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def wrapped(net: nn.Sequential, layout: Layout, mesh: DeviceMesh) -> nn.Module:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    if "tensor" in layout.names:
        parallelize_module(net, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    along = mesh[layout.data_names]
    if layout.wrap == "none":
        return net
    if layout.wrap == "ddp":
        return DistributedDataParallel(net, process_group=along.get_group())
    if layout.wrap == "without a bias":
        return fully_shard(net, mesh=along, ignored_params={net[0].bias})
    fully_shard(net[2], mesh=along)
    if layout.wrap != "one layer":
        fully_shard(net, mesh=along if layout.wrap == "layers" else init_device_mesh("cpu", (PROCESSES,)))
    return net


def dealt_over(layout: Layout, mesh: DeviceMesh) -> Cut:
    """Draw the micro-batches of each process that trains one model; models that train apart get other samples."""
    cut = with_work_for_all(layout.seed, mesh[layout.data_names].size())
    apart = mesh.get_local_rank("other") if "other" in layout.names else 4
    return [[[row for row in rows if row % 5 != apart] or rows[:1] for rows in rank] for rank in cut]


def train(rank: int, layout: Layout) -> Any:
    mesh = init_device_mesh("cpu", layout.shape, mesh_dim_names=layout.names)
    net, (x, y), cut = wrapped(even(), layout, mesh), data(), dealt_over(layout, mesh)
    along = mesh[layout.data_names]
    mine = cut[along.mesh.flatten().tolist().index(rank)]
    options: Any = {"sync": layout.sync, "ranks": along if layout.wrap == "none" else None}
    accumulator = gg.Accumulator(momentum(net), model=net, clip_norm=0.5, **options)
    for _ in range(2):
        with accumulator.update() as update:
            for rows in update.micro_batches(mine):
                update.backward(F.cross_entropy(net(x[rows]), y[rows]), count=len(rows))
    return everybody(cut), whole(net.parameters()), (update.count, update.grad_norm)


def momentum(net: nn.Module, lr: float = 0.5) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)


def whole(parameters: Iterable[Any]) -> list[Tensor]:
    values = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in parameters]
    return [value.detach().clone() for value in values]


def of_one_process(rows: list[int]) -> tuple[list[Tensor], float]:
    net, (x, y) = even(), data()
    optimizer = momentum(net)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(net(x[rows]), y[rows]).backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
    return whole(net.parameters()), float(norm)


# What was wrong once: gradients over two processes, counts over four; and no norm over two meshes.
LAYOUTS = [
    Layout((2, 2), ("shard", "tensor"), "layers", "last", 0),
    Layout((2, 2), ("shard", "other"), "layers", "every", 1),
    Layout((2, 2), ("other", "shard"), "without a bias", "last", 2),
    Layout((2, 1, 2), ("replicate", "shard", "other"), "one layer", "last", 3),
    Layout((2, 2), ("replicate", "shard"), "root over a flat mesh", "every", 4),
    Layout((2, 2), ("shard", "other"), "ddp", "last", 5),
    Layout((2, 2), ("other", "shard"), "none", "last", 6),
]


def test_any_mesh_gives_the_update_of_one_process() -> None:
    layouts = [*LAYOUTS, *(drawn(seed) for seed in range(DRAWN))]
    for layout, outcomes in zip(
        layouts, in_a_row(train, PROCESSES, [(one,) for one in layouts]), strict=True
    ):
        for outcome in outcomes:
            assert not isinstance(outcome, Exception), f"{layout}: {outcome}"
            rows, values, (count, norm) = outcome
            expected, expected_norm = of_one_process(rows)
            assert_same(values, expected, rtol=1e-11)
            assert count == len(rows), layout
            assert norm == pytest.approx(expected_norm, rel=1e-12), layout


def window(net: nn.Module, rank: int, lr: float = 0.5, **options: Any) -> float:
    """Make an update; ranks have different numbers of micro-batches, unless a pass needs all of them."""
    x, y = data()
    accumulator = gg.Accumulator(momentum(net, lr), **{"model": net, **options})
    with accumulator.update() as update:
        for rows in update.micro_batches([[0, 1], [2]] if rank == 0 else [[3]]):
            update.backward(F.cross_entropy(net(x[rows]), y[rows]), count=len(rows))
    return update.count


def refused(rank: int, case: str) -> Any:
    """Return the error of a window, and the count of a later one, of another model."""
    from torch.distributed.fsdp import fully_shard

    net, mesh = even(), init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "other"))
    flat = init_device_mesh("cpu", (PROCESSES,))
    options: dict[str, Any] = {}
    if case == "ranks":
        fully_shard(net, mesh=mesh["data"])
        options["ranks"] = flat
    elif case == "ranks of one process":
        fully_shard(net, mesh=flat)
        options["ranks"] = mesh["data"] if rank == 1 else None
    else:
        fully_shard(net, mesh=mesh["data"])
        options["lr"] = 1.0 + rank // 2
    try:
        window(net, rank, **options)
    except RankError as error:
        return str(error), window(even(), rank)
    return None


REFUSED = {
    "ranks": "averages gradients over processes",
    "ranks of one process": "ranks= names processes 1, 3, but FSDPSequential",
    "different rates": "rank {peer}: [2.0]",
}


def test_what_contradicts_a_mesh_is_refused_on_all_ranks_at_once_and_other_models_train_on() -> None:
    cases = [(case,) for case in REFUSED]
    start = time.monotonic()
    for case, outcomes in zip(REFUSED, in_a_row(refused, PROCESSES, cases), strict=True):
        for rank, outcome in enumerate(outcomes):
            assert not isinstance(outcome, Exception), f"{case}: {outcome}"
            message, count = outcome
            assert REFUSED[case].format(peer=2 + rank % 2) in message, case
            assert count == 6, case  # of a window over all processes
    assert time.monotonic() - start < TIMEOUT_SECONDS
