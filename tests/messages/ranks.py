"""Ranks that do not fit together. Each cause runs on two ranks and returns or raises on both."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._composable.replicate import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradgate as gg
from tests.messages import message_of


def accumulator(lr: float = 1.0, **options: Any) -> tuple[nn.Module, gg.Accumulator]:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    return model, gg.Accumulator(torch.optim.SGD(model.parameters(), lr=lr), **{"model": model, **options})


def update(rank: int, model: nn.Module, accumulator: gg.Accumulator) -> None:
    del rank
    with accumulator.update() as update:
        update.backward(model(torch.ones(4, 2)).mean(), count=4)


def other_rates(rank: int) -> None:
    update(rank, *accumulator(lr=1.0 + rank))


def other_rows(rank: int) -> None:
    model, ours = accumulator()
    with gg.train_rows(model.bias if rank else model, [0]):
        update(rank, model, ours)


def no_model(rank: int) -> None:
    update(rank, *accumulator(model=None))


def wrapped_alone(rank: int) -> None:
    wrapped = DistributedDataParallel(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=1.0)
    update(rank, wrapped, gg.Accumulator(optimizer, model=wrapped, ranks=False))


def another_group(rank: int) -> None:
    groups = [dist.new_group([member]) for member in range(2)]
    update(rank, *accumulator(ranks=groups[1 - rank]))


def half_a_model(rank: int) -> None:
    model, head = nn.Linear(2, 1), nn.Linear(1, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=1.0)
    update(rank, model, gg.Accumulator(optimizer, model=model))


def static_graph(rank: int) -> None:
    model = nn.Linear(2, 1)
    wrapped = DistributedDataParallel(model, static_graph=True)
    update(rank, wrapped, gg.Accumulator(torch.optim.SGD(model.parameters(), lr=1.0), model=wrapped))


def composable(rank: int) -> None:
    model, ours = accumulator()
    update(rank, replicate(model), ours)


def in_join(rank: int) -> None:
    model = nn.Linear(2, 1)
    wrapped = DistributedDataParallel(model)
    with wrapped.join():
        update(rank, wrapped, gg.Accumulator(torch.optim.SGD(model.parameters(), lr=1.0), model=wrapped))


def different_meshes(rank: int) -> None:
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("both", "alone"))
    model = nn.Sequential(fully_shard(nn.Linear(2, 2), mesh=mesh["both"]), nn.Linear(2, 1))
    fully_shard(model[1], mesh=mesh["alone"])
    update(rank, model, gg.Accumulator(torch.optim.SGD(model.parameters(), lr=1.0), model=model))


def another_rank(rank: int) -> None:
    model, ours = accumulator(**({"model": None} if rank else {}))
    update(rank, model, ours)


def inner_model(rank: int) -> None:
    model = nn.Linear(2, 1)
    wrapped = DistributedDataParallel(model)
    update(rank, wrapped, gg.Accumulator(torch.optim.SGD(model.parameters(), lr=1.0), model=model))


def stopped(rank: int) -> None:
    model, ours = accumulator()
    with ours.update() as update:
        for _ in update.micro_batches([1]):
            loss = model(torch.ones(4, 2)).mean()
            if rank:
                loss.register_hook(lambda _: 1 / 0)
            update.backward(loss, count=4)


def coupled(rank: int, encode: Callable[[Tensor], Tensor], *, on: int = 2) -> None:
    model, ours = accumulator()
    with ours.update() as update:
        if rank < on:
            update.backward_coupled(
                lambda x: encode(model(x)), [torch.ones(4, 2)], lambda z: z.double().mean()
            )
        else:
            update.backward(model(torch.ones(4, 2)).mean(), count=4)


def coupled_on_one(rank: int) -> None:
    coupled(rank, lambda z: z, on=1)


def coupled_in_other_types(rank: int) -> None:
    coupled(rank, lambda z: z.double() if rank else z)


def unknown_sync(rank: int) -> None:
    del rank
    accumulator(sync="always")


CASES: dict[str, Callable[[int], None]] = {
    "an unknown sync": unknown_sync,
    "ranks with other rates": other_rates,
    "ranks that train different rows": other_rows,
    "ranks without a model": no_model,
    "ranks with half a model": half_a_model,
    "a wrapped model on one rank alone": wrapped_alone,
    "a group of other processes": another_group,
    "modules over different processes": different_meshes,
    "replicate": composable,
    "join": in_join,
    "another rank without its model": another_rank,
    "a static graph": static_graph,
    "a wrapper around the model": inner_model,
    "a rank that stopped": stopped,
    "a coupled loss on one rank": coupled_on_one,
    "representations of other types": coupled_in_other_types,
}


def messages(rank: int) -> dict[str, tuple[Any, ...]]:
    """Run all causes one after the other; return what each raises on this rank."""
    found = {}
    for name, cause in CASES.items():
        dist.barrier()
        found[name] = tuple(message_of(partial(cause, rank)))
    return found
