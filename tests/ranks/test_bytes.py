"""What docs/ranks.md says of collectives, bytes and gradients, against what ranks really do."""

import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

import gradgate as gg
from tests.ranks.processes import together

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "ranks.md"
MICRO_BATCHES = 3
ITEMS = ([2.0, 4.0], [9.0], [7.0, 1.0, 1.0], [5.0])  # of each rank


class Sent(TorchDispatchMode):
    """Counts collectives, and the bytes that a rank sends in them, in a ring."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.reset()

    def reset(self) -> None:
        self.collectives = 0
        self.sent_bytes = 0.0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if any(kind.__name__ == "DTensor" for kind in types):
            return NotImplemented  # its own collectives come by again, as plain ones
        self._count(str(func), args)
        return func(*args, **(kwargs or {}))

    def _count(self, name: str, args: Any) -> None:
        others = dist.get_world_size() - 1
        if name == "c10d.allgather_.default":
            self.add(others * args[1][0].nbytes)
        elif name == "c10d._allgather_base_.default":
            self.add(others * args[1].nbytes)
        elif name == "c10d._reduce_scatter_base_.default":
            self.add(others / (others + 1) * args[1].nbytes)
        elif name == "c10d.allreduce_.default":
            self.add(2 * others / (others + 1) * args[0][0].nbytes)
        elif name == "_c10d_functional.all_reduce.default":
            self.add(2 * others / (others + 1) * args[0].nbytes)
        else:
            assert "c10d" not in name or "wrap_tensor" in name or "wait_tensor" in name, name

    def add(self, sent_bytes: float) -> None:
        self.collectives += 1
        self.sent_bytes += sent_bytes

    def hook(self, state: Any, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
        """Count what DDP's reducer, which is not written in Python, sends through its communication hook."""
        ranks = dist.get_world_size()
        self.add(2 * (ranks - 1) / ranks * bucket.buffer().nbytes)
        return allreduce_hook(state, bucket)


def model() -> nn.Sequential:
    """Every dimension can be dealt to 2, 3 and 4 ranks: nothing is padded."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 12), nn.Tanh(), nn.Linear(12, 24)).double()


def sharded(net: nn.Sequential) -> Any:
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for part in (*(one for one in net if isinstance(one, nn.Linear)), net):
        fully_shard(part, mesh=mesh)
    return net


def loss_of(net: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = net(x).square().mean()
    return loss


def plain_ddp(micro_batches: list[Tensor], sent: Sent, *, no_sync: bool) -> Callable[[], None]:
    net = DistributedDataParallel(model())
    net.register_comm_hook(None, sent.hook)

    def update() -> None:
        for number, x in enumerate(micro_batches, start=1):
            with net.no_sync() if no_sync and number < len(micro_batches) else nullcontext():
                loss_of(net, x).backward()
        net.zero_grad()

    return update


def plain_sharded(micro_batches: list[Tensor], *, every: bool) -> Callable[[], None]:
    net = sharded(model())

    def update() -> None:
        for number, x in enumerate(micro_batches, start=1):
            net.set_requires_gradient_sync(every or number == len(micro_batches))
            loss_of(net, x).backward()
        net.zero_grad()

    return update


def by_gradgate(micro_batches: list[Tensor], net: nn.Module, sync: Any = "last") -> Callable[[], None]:
    accumulator = gg.Accumulator(torch.optim.SGD(net.parameters(), lr=0.1), model=net, sync=sync)

    def update() -> None:
        with accumulator.update() as update:
            for x in update.micro_batches(micro_batches):
                update.backward(loss_of(net, x), count=x.numel())

    return update


def measured(rank: int) -> dict[str, tuple[int, float]]:
    """Count the second update of each loop; in the first one ranks see that they train the same."""
    even = list(torch.ones(2 * MICRO_BATCHES, 24, dtype=torch.float64).split(2))
    uneven = even[: MICRO_BATCHES if rank == 0 else MICRO_BATCHES - 1]
    hooked, hooked_once = Sent(), Sent()
    wrapped = DistributedDataParallel(model())
    loops = {
        "DDP": (plain_ddp(even, hooked, no_sync=False), hooked),
        "DDP, `no_sync`": (plain_ddp(even, hooked_once, no_sync=True), hooked_once),
        "gradgate": (by_gradgate(uneven, model()), None),
        "gradgate, DDP": (by_gradgate(uneven, wrapped), None),
        "FSDP2": (plain_sharded(even, every=True), None),
        "FSDP2, at the last": (plain_sharded(even, every=False), None),
        "gradgate, FSDP2, `every`": (by_gradgate(uneven, sharded(model()), "every"), None),
        "gradgate, FSDP2, `last`": (by_gradgate(uneven, sharded(model()), "last"), None),
    }
    counted = {}
    for name, (update, sent) in loops.items():
        update()
        if sent is None:
            with Sent() as sent:
                update()
        else:
            sent.reset()
            update()
        counted[name] = sent.collectives, sent.sent_bytes
    return counted


def gradients(rank: int) -> dict[str, float]:
    """The gradient of one weight, by which each item is multiplied."""
    items = torch.tensor(ITEMS[rank], dtype=torch.float64)
    found = {}
    wrapped: dict[str, Callable[[Any], Any]] = {"DDP": DistributedDataParallel, "FSDP2": sharded}
    reductions: tuple[Literal["mean", "sum"], ...] = ("mean", "sum")
    for reduction in reductions:
        for name, wrap in wrapped.items():
            net = wrap(nn.Sequential(nn.Linear(1, 1, bias=False, dtype=torch.float64)))
            getattr(net(items[:, None]), reduction)().backward()
            (gradient,) = (one.grad for one in net.parameters())
            found[f"{name}, {reduction}"] = whole(gradient).item()
        net = nn.Linear(1, 1, bias=False, dtype=torch.float64)
        nn.init.zeros_(net.weight)
        with gg.Accumulator(torch.optim.SGD(net.parameters(), lr=1.0), model=net).update() as update:
            loss = getattr(net(items[:, None]), reduction)()
            update.backward(loss, count=len(items), reduction=reduction)
        found[f"gradgate, {reduction}"] = -net.weight.item()
    return found


def whole(gradient: Any) -> Tensor:
    tensor: Tensor = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    return tensor


def both(rank: int) -> Any:
    return measured(rank), gradients(rank)


def rows() -> dict[str, tuple[str, str]]:
    """The page's formulas, for collectives and for bytes, by loop."""
    found = re.findall(r"^\| ([^|]+) \| `([^|`]+)` \| `([^|`]+)` \|", PAGE.read_text("utf-8"), re.MULTILINE)
    return {name: (collectives, sent_bytes) for name, collectives, sent_bytes in found}


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_page_says_what_ranks_send_and_what_becomes_of_a_gradient(ranks: int) -> None:
    net = model()
    sizes: dict[str, float] = {
        "W": ranks,
        "s": (ranks - 1) / ranks,
        "k": MICRO_BATCHES,
        "P": sum(one.nbytes for one in net.parameters()),
        "n": 8 * len(list(net.parameters())),
        "p": len(list(net.parameters())),
        "b": 1,
        "g": 2,
    }
    formulas = rows()
    means = [sum(items) / len(items) for items in ITEMS[:ranks]]
    total, count = sum(map(sum, ITEMS[:ranks])), sum(map(len, ITEMS[:ranks]))
    for counted, found in together(both, ranks):
        assert set(counted) == set(formulas)
        for name, (collectives, sent_bytes) in formulas.items():
            assert counted[name] == (
                eval(collectives, dict(sizes)),
                pytest.approx(eval(sent_bytes, dict(sizes))),
            )
        assert found == {
            "DDP, mean": pytest.approx(sum(means) / ranks),
            "DDP, sum": pytest.approx(total / ranks),
            "FSDP2, mean": pytest.approx(sum(means) / ranks),
            "FSDP2, sum": pytest.approx(total / ranks),
            "gradgate, mean": pytest.approx(total / count),
            "gradgate, sum": pytest.approx(total / count),
        }
