"""Meshes of two dimensions: data is dealt along one of them or both, and the update is one process's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import gradgate as gg
from tests.ranks.processes import together
from tests.ranks.work import adam, data
from tests.reference import assert_same

pytestmark = pytest.mark.slow

OF_FOUR = [[[0, 1, 2], [3]], [[4, 5]], [[6, 7, 8, 9, 10]], [[11], [12, 13]]]
OF_TWO = OF_FOUR[:2]


def even() -> nn.Sequential:
    """A model whose layers can be halved: what torch asks of tensor parallelism."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def mesh_of(*names: str) -> DeviceMesh:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=names)


def shard(net: nn.Sequential, mesh: DeviceMesh) -> nn.Sequential:
    from torch.distributed.fsdp import fully_shard

    for layer in (net[0], net[2], net):
        fully_shard(layer, mesh=mesh)
    return net


def train(net: nn.Module, cut: list[list[int]], **options: Any) -> dict[str, Any]:
    x, y = data()
    accumulator = gg.Accumulator(adam(net), model=net, clip_norm=0.5, **options)
    for _ in range(2):
        with accumulator.update() as update:
            for rows in update.micro_batches(cut):
                update.backward(F.cross_entropy(net(x[rows]), y[rows]), count=len(rows))
    values = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in net.parameters()]
    return {"values": [one.detach() for one in values], "told": (update.count, update.grad_norm)}


def hybrid(rank: int, sync: Any) -> Any:
    """Sharded along one dimension, replicated along the other."""
    return train(shard(even(), mesh_of("replicate", "shard")), OF_FOUR[rank], sync=sync)


def replicated(rank: int) -> Any:
    """The other dimension's ranks do the same."""
    along = mesh_of("data", "other")["data"]
    return train(even(), OF_TWO[along.get_local_rank()], ranks=along)


def sharded_in_part(rank: int) -> Any:
    along = mesh_of("data", "other")["data"]
    return train(shard(even(), along), OF_TWO[along.get_local_rank()], ranks=along)


def beside_tensor_parallel(rank: int) -> Any:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    net, mesh = even(), mesh_of("data", "tensor")
    parallelize_module(net, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return train(shard(net, mesh["data"]), OF_TWO[mesh["data"].get_local_rank()], ranks=mesh["data"])


@pytest.mark.parametrize(
    ("on_a_rank", "args", "cut"),
    [
        (hybrid, ("last",), OF_FOUR),
        (hybrid, ("every",), OF_FOUR),
        (replicated, (), OF_TWO),
        (sharded_in_part, (), OF_TWO),
        (beside_tensor_parallel, (), OF_TWO),
    ],
    ids=["hybrid last", "hybrid every", "replicated", "sharded in part", "beside tensor parallel"],
)
def test_a_mesh_of_two_dimensions_gives_the_update_of_one_process(
    on_a_rank: Callable[..., Any], args: tuple[Any, ...], cut: list[list[list[int]]]
) -> None:
    everything = [number for rank in cut for rows in rank for number in rows]
    expected = plain(everything)
    for found in together(on_a_rank, 4, *args):
        assert_same(found["values"], expected)
        assert found["told"][0] == len(everything)


def plain(rows: list[int]) -> list[Tensor]:
    net, (x, y) = even(), data()
    optimizer = adam(net)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(net(x[rows]), y[rows]).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
    return [one.detach() for one in net.parameters()]
