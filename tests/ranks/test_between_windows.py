"""What ordinary loops do between windows and inside them changes no update: evaluate, wrap, break off.

Each scenario trains some windows of unequal micro-batches and is compared with one process that runs whole batches.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradgate as gg
from gradgate.errors import RankError
from tests.ranks.processes import in_a_row
from tests.reference import assert_same

pytestmark = pytest.mark.slow

# For each rank the micro-batches of a window, unequal on purpose; the same window comes three times.
CUT = [[[0, 1, 2, 3, 4], [5]], [[6, 7], [8, 9, 10]]]
WINDOWS = 3


class Words(nn.Module):
    """Embedding and head belong to the root of ``fully_shard``, the block has a group of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.0))
        self.head = nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.block(self.embedding(words)))


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(7, (12,), generator=generator), torch.randint(3, (12,), generator=generator)


def words() -> Words:
    torch.manual_seed(1)
    return Words().double()


def expected(windows: int = WINDOWS) -> list[Tensor]:
    """The slow truth: whole batches on one process, plain autograd."""
    net, (x, y) = words(), data()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    rows = [row for rank in CUT for part in rank for row in part]
    for _ in range(windows):
        optimizer.zero_grad()
        F.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in net.parameters()]


def sharded(net: Words, **options: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    fully_shard(net.block, mesh=mesh, **options)
    return fully_shard(net, mesh=mesh, **options)


def full(net: nn.Module) -> list[Tensor]:
    for module in net.modules():
        if hasattr(module, "reshard"):
            module.reshard()
    return [getattr(p.detach(), "full_tensor", p.detach)().clone() for p in net.parameters()]


class Loop:
    """One accumulator's windows, with something done at every place where a loop may do something."""

    def __init__(self, wrap: Callable[[Words], nn.Module], **options: Any) -> None:
        self.net = words()
        self.called = wrap(self.net)
        optimizer = torch.optim.SGD(self.called.parameters(), lr=0.5, momentum=0.9)
        self.accumulator = gg.Accumulator(optimizer, model=self.called, **options)
        self.x, self.y = data()

    def window(self, rank: int, within: Callable[[], object] = lambda: None) -> None:
        with self.accumulator.update() as update:
            for rows in update.micro_batches(CUT[rank]):
                update.backward(F.cross_entropy(self.called(self.x[rows]), self.y[rows]), count=len(rows))
                within()

    def evaluate(self, *, grad: bool = False, train: bool = False) -> Tensor:
        self.called.train(train)
        with torch.set_grad_enabled(grad):
            output = self.called(self.x)
        self.called.train()
        return output


WRAPPERS: dict[str, Callable[[Words], nn.Module]] = {
    "plain": lambda net: net,
    "ddp": DistributedDataParallel,
    "ddp, unused looked for": lambda net: DistributedDataParallel(net, find_unused_parameters=True),
    "ddp, bucket views": lambda net: DistributedDataParallel(net, gradient_as_bucket_view=True),
    "fully_shard": sharded,
    "fully_shard, gathered after forward": lambda net: sharded(net, reshard_after_forward=False),
}


def wrapped_again(rank: int, told: bool) -> Any:
    loop = Loop(DistributedDataParallel)
    loop.window(rank)
    loop.called = DistributedDataParallel(loop.net)
    if told:
        loop.accumulator.model = loop.called
    try:
        loop.window(rank)
        loop.window(rank)
    except RankError as error:
        return str(error)
    return full(loop.called)


def test_a_model_that_is_wrapped_again_is_refused_until_the_accumulator_knows_its_wrapper() -> None:
    untold, told = in_a_row(wrapped_again, 2, [(False,), (True,)])
    for said in untold:
        assert "accumulator.model = wrapper" in said
    for values in told:
        assert_same(values, expected(), rtol=1e-12)


def beside_another(rank: int, how: str) -> Any:
    """Another network runs in the window, more often on one rank; it has buffers to synchronize."""
    loop = Loop(WRAPPERS["fully_shard" if how == "sharded beside plain" else "ddp"])
    other_net = words()
    other = other_net if how == "sharded beside plain" else DistributedDataParallel(other_net)
    neighbours = []
    if how == "has an accumulator":
        neighbours = [gg.Accumulator(torch.optim.SGD(other.parameters(), lr=1.0), model=other)]
    elif how == "named":
        loop.accumulator.model = [loop.called, other]
    left = torch.ones(4, dtype=torch.float64)
    other_net.block[0].bias.grad = left
    micro_batches = CUT[rank] if how == "sharded beside plain" else [*CUT[rank], *[[11]] * rank]
    with loop.accumulator.update() as update:
        for rows in update.micro_batches(micro_batches):
            loss = F.cross_entropy(loop.called(loop.x[rows]), loop.y[rows])
            update.backward(loss + other(loop.x[rows]).mean(), count=len(rows))
    del neighbours
    bias = other_net.block[0].bias.grad
    kept = bias is left and bool((left == 1).all()) and other_net.head.weight.grad is None
    return kept, getattr(other, "require_backward_grad_sync", True)


def test_another_network_in_the_window_neither_waits_nor_receives_anything() -> None:
    rows = [("has an accumulator",), ("named",), ("sharded beside plain",)]
    assert in_a_row(beside_another, 2, rows) == [[(True, True)] * 2] * 3


def two_sharded(rank: int, named: bool) -> Any:
    from torch.distributed.fsdp import fully_shard

    loop = Loop(sharded)
    critic: Any = fully_shard(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double())
    if named:
        loop.accumulator.model = [loop.called, critic]
    try:
        with loop.accumulator.update() as update:
            for rows in update.micro_batches(CUT[rank]):
                update.backward(critic(loop.called(loop.x[rows])).mean(), count=len(rows))
    except RankError as error:
        return str(error)
    critic.reshard()
    return all(parameter.grad is None for parameter in critic.parameters())


def test_another_sharded_network_has_to_be_named() -> None:
    named, unnamed = in_a_row(two_sharded, 2, [(True,), (False,)])
    assert named == [True, True]
    for said in unnamed:
        assert "in no accumulator's model=" in said


def generator_of() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def critic_of() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def pictures() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(12, 2, dtype=torch.float64, generator=generator)
    return noise, torch.randn(12, 3, dtype=torch.float64, generator=generator)


def critic_loss(generator: nn.Module, critic: nn.Module, rows: list[int]) -> Tensor:
    noise, real = pictures()
    return critic(generator(noise[rows])).mean() - critic(real[rows]).tanh().mean()


def generator_loss(generator: nn.Module, critic: nn.Module, rows: list[int]) -> Tensor:
    return -critic(generator(pictures()[0][rows])).sin().mean()


def layers_sharded(net: nn.Sequential) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for layer in (net[0], net[2], net):
        fully_shard(layer)
    return net


def adversarial(rank: int, wrapper: str) -> list[Tensor]:
    """Two networks in turn, each runs in the other's window, without a detach."""
    wrap = {"ddp": DistributedDataParallel, "fully_shard": layers_sharded}[wrapper]
    networks = [wrap(generator_of()), wrap(critic_of())]
    accumulators = [gg.Accumulator(torch.optim.SGD(net.parameters(), lr=0.3), model=net) for net in networks]
    for _ in range(WINDOWS):
        for loss_fn, accumulator in ((critic_loss, accumulators[1]), (generator_loss, accumulators[0])):
            with accumulator.update() as update:
                for rows in update.micro_batches(CUT[rank]):
                    update.backward(loss_fn(*networks, rows), count=len(rows))
    return [*full(networks[0]), *full(networks[1])]


def test_two_networks_in_turn_train_as_on_one_process() -> None:
    networks = [generator_of(), critic_of()]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.3) for net in networks]
    rows = [row for rank in CUT for part in rank for row in part]
    for _ in range(WINDOWS):
        for loss_fn, place in ((critic_loss, 1), (generator_loss, 0)):
            optimizers[place].zero_grad()
            loss_fn(*networks, rows).backward()
            optimizers[place].step()
    whole = [parameter.detach() for net in networks for parameter in net.parameters()]
    for ranks in in_a_row(adversarial, 2, [("ddp",), ("fully_shard",)]):
        for found in ranks:
            assert_same(found, whole, rtol=1e-12)
