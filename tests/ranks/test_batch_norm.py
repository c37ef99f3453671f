"""Running statistics over ranks: with ``batch_norm="window"``, those of the whole window on every rank."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradgate as gg
from tests.ranks.processes import in_a_row

pytestmark = pytest.mark.filterwarnings("ignore::gradgate.errors.BatchNormWarning")

# For each window, each rank's micro-batches, each given by its number of samples.
EVEN = [[[4, 4], [4, 4]], [[8], [8]]]
UNEVEN = [[[5], [2, 3, 4]], [[3, 2, 6], [2]]]
NONE_ON_ONE = [[[], [2, 3]], [[4], []]]


def net(momentum: float | None) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.BatchNorm1d(3, momentum=momentum), nn.Linear(3, 2)).double()


def samples(window: int, number: int) -> Tensor:
    generator = torch.Generator().manual_seed(window)
    return (
        torch.randn(number, 3, generator=generator, dtype=torch.float64) * 2 + torch.arange(number)[:, None]
    )


def statistics(module: nn.Module) -> list[Tensor]:
    return [buffer.clone() for buffer in module.buffers()]


def of_one_batch(windows: list[list[list[int]]], momentum: float | None) -> list[Tensor]:
    norm = net(momentum)[0]
    for number, of_ranks in enumerate(windows):
        norm(samples(number, sum(map(sum, of_ranks))))
    return statistics(norm)


def over_ranks(
    rank: int, windows: list[list[list[int]]], momentum: float | None, wrapper: str
) -> list[Tensor]:
    model: Any = net(momentum)
    if wrapper == "fully_shard":
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    called = DistributedDataParallel(model) if wrapper == "ddp" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    accumulator = gg.Accumulator(optimizer, model=called, batch_norm="window")
    for number, of_ranks in enumerate(windows):
        x = samples(number, sum(map(sum, of_ranks)))
        mine = x.split([sum(each) for each in of_ranks])[rank]
        with accumulator.update() as update:
            for part in update.micro_batches(mine.split(of_ranks[rank]) if len(mine) else []):
                update.backward(called(part).square().mean(), count=len(part))
    return statistics(model[0])


ROWS = [
    (windows, momentum, wrapper)
    for windows in (EVEN, UNEVEN, NONE_ON_ONE)
    for momentum in (0.1, None)
    for wrapper in ("none", "ddp", "fully_shard")
    if wrapper != "fully_shard" or windows is not NONE_ON_ONE  # needs a micro-batch on every rank
]


def test_all_ranks_hold_the_statistics_of_the_whole_window() -> None:
    for row, outcomes in zip(ROWS, in_a_row(over_ranks, 2, ROWS), strict=True):
        expected = of_one_batch(*row[:2])
        for found in outcomes:
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12, msg=lambda m: f"{row}: {m}")  # noqa: B023
        assert all(torch.equal(a, b) for a, b in zip(*outcomes, strict=True))


def after_forward_passes_of_its_own(rank: int) -> list[Tensor]:
    model = net(0.1)
    called = DistributedDataParallel(model)
    for _ in range(2):  # each rank moves its own buffers; rank 0's are those that DDP keeps
        called(samples(0, 4) + rank)
    accumulator = gg.Accumulator(
        torch.optim.SGD(model.parameters(), lr=0.1), model=called, batch_norm="window"
    )
    with accumulator.update() as update:
        for part in update.micro_batches(samples(1, 6).split([2, 4])[rank : rank + 1]):
            update.backward(called(part).square().mean(), count=len(part))
    return statistics(model[0])


def test_under_ddp_they_continue_from_those_of_the_first_rank() -> None:
    ((first, second),) = in_a_row(after_forward_passes_of_its_own, 2, [()])
    norm = net(0.1)[0]
    for x in (samples(0, 4), samples(0, 4), samples(1, 6)):
        norm(x)
    for found in (first, second):
        torch.testing.assert_close(found, statistics(norm), rtol=1e-12, atol=1e-12)


def stopped(rank: int) -> Any:
    model = net(0.1)
    called = DistributedDataParallel(model)
    accumulator = gg.Accumulator(
        torch.optim.SGD(model.parameters(), lr=0.1), model=called, batch_norm="window", nonfinite="skip"
    )
    before = statistics(model[0])
    with accumulator.update() as update:
        for part in update.micro_batches(samples(1, 6).split(3)):
            loss = called(part).square().mean()
            update.backward(loss * (float("nan") if rank else 1), count=len(part))
    return update.stepped, before, statistics(model[0]), model[0].momentum


def test_a_skipped_window_leaves_them_alone_on_all_ranks() -> None:
    ((first, second),) = in_a_row(stopped, 2, [()])
    for stepped, before, after, momentum in (first, second):
        assert not stepped
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        assert momentum == 0.1


def unlike_options(rank: int) -> str:
    model = net(0.1)
    accumulator = gg.Accumulator(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model=model,
        batch_norm="micro_batch" if rank else "window",
    )
    try:
        accumulator.step_window(lambda x: model(x).square().mean(), [samples(0, 4)])
    except gg.errors.RankError as error:
        return str(error)
    return ""


def test_all_ranks_need_the_same_option() -> None:
    ((first, second),) = in_a_row(unlike_options, 2, [()])
    assert first == second
    assert first.startswith("update: ranks differ in batch_norm: rank 0: window; rank 1: micro_batch.")


def coupled(rank: int, wrapper: str) -> tuple[list[Tensor], list[Tensor]]:
    """Train on a loss that normalizes the representations of all ranks once more, as Barlow Twins does."""
    model, projector = net(0.1), nn.BatchNorm1d(2, affine=False).double()
    if wrapper == "fully_shard":
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    accumulator = gg.Accumulator(
        torch.optim.SGD(model.parameters(), lr=0.1), model=[model, projector], batch_norm="window"
    )
    mine = samples(0, 9).split([4, 5])[rank]
    with accumulator.update() as update:
        update.backward_coupled(
            model, list(mine.split(2 if rank == 0 else 5)), lambda z: projector(z).pow(4).mean()
        )
    return statistics(model[0]), statistics(projector)


def test_a_coupled_loss_adds_each_representation_once() -> None:
    rows = [("none",), ("fully_shard",)]
    for first, second in in_a_row(coupled, 2, rows):
        norm, projector = net(0.1)[0], nn.BatchNorm1d(2, affine=False).double()
        norm(samples(0, 9))
        torch.testing.assert_close(first[0], statistics(norm), rtol=1e-12, atol=1e-12)
        x = samples(0, 9)
        head = net(0.1)
        with torch.no_grad():
            projector(torch.cat([head(part) for part in (x[:2], x[2:4], x[4:])]))
        torch.testing.assert_close(first[1], statistics(projector), rtol=1e-12, atol=1e-12)
        assert all(
            torch.equal(a, b) for a, b in zip([*first[0], *first[1]], [*second[0], *second[1]], strict=True)
        )


class Synchronized(nn.SyncBatchNorm):
    """What ``SyncBatchNorm`` does, on the CPU: normalizes over the items of all ranks."""

    def forward(self, x: Tensor) -> Tensor:
        of_ranks: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(of_ranks, x.detach())
        whole = torch.cat(of_ranks)
        F.batch_norm(whole, self.running_mean, self.running_var, training=True, momentum=self.momentum or 0.0)
        return (x - whole.mean(0)) / whole.std(0, correction=0)


def synchronized(rank: int) -> list[Tensor]:
    norm = Synchronized(3, affine=False).double()
    model = nn.Sequential(norm, nn.Linear(3, 2).double())
    accumulator = gg.Accumulator(
        torch.optim.SGD(model.parameters(), lr=0.1), model=model, batch_norm="window"
    )
    mine = samples(0, 14).split([8, 6])[rank]
    with accumulator.update() as update:
        for part in update.micro_batches(mine.split([3, 5, 0] if rank == 0 else [2, 1, 3])):
            update.backward(model(part).square().sum(), count=len(part), reduction="sum")
    return statistics(norm)


def test_synchronized_batch_norms_get_them_too() -> None:
    ((first, second),) = in_a_row(synchronized, 2, [()])
    norm = net(0.1)[0]
    norm(samples(0, 14))
    for found in (first, second):
        torch.testing.assert_close(found, statistics(norm), rtol=1e-12, atol=1e-12)
