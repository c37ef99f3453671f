"""The same law under fully_shard: parameters in parts, any cut over ranks, one process's update."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule

import gradgate as gg
from gradgate.errors import RankError, UpdateError
from tests.ranks.processes import in_a_row, together
from tests.ranks.test_update import dealt, everybody
from tests.ranks.work import SAMPLES, Cut, adam, data, model, of_one_process
from tests.reference import assert_same

pytestmark = pytest.mark.slow


def sharded(ranks: int, net: nn.Sequential | None = None) -> nn.Sequential:
    from torch.distributed.fsdp import fully_shard

    net = net or model()
    mesh = init_device_mesh("cpu", (ranks,))
    for layer in (net[0], net[2], net):
        fully_shard(layer, mesh=mesh)
    return net


def whole(net: nn.Module) -> list[Tensor]:
    return [one.detach().full_tensor().clone() for one in net.parameters()]  # type: ignore[operator]


def train(rank: int, cuts: list[Cut], sync: Any) -> dict[str, Any]:
    net, (x, y) = sharded(len(cuts[0])), data()
    accumulator = gg.Accumulator(adam(net), model=net, clip_norm=0.5, sync=sync)
    told = []
    for cut in cuts:
        with accumulator.update() as update:
            for rows in update.micro_batches(cut[rank]):
                loss = F.cross_entropy(net(x[list(rows)]), y[list(rows)])
                update.backward(loss, count=len(rows))
        told.append((update.count, update.grad_norm))
    return {"values": whole(net), "told": told, "micro_batches": update.micro_batch_count}


def with_work_for_all(seed: int, ranks: int) -> Cut:
    """Everybody gets something: at least one micro-batch, of one sample or more."""
    cut = [[list(rows) for rows in rank if len(rows)] for rank in dealt(seed, ranks)]
    for rank in cut:
        if not rank:
            most = max(cut, key=lambda one: sum(map(len, one)))
            rank.append([most[0].pop()])
            if not most[0]:
                del most[0]
    return cut


def in_other_types(rank: int, dtypes: list[torch.dtype]) -> Any:
    found = []
    for dtype in dtypes:
        net, (x, y) = sharded(torch.distributed.get_world_size(), model().to(dtype)), data()
        accumulator = gg.Accumulator(torch.optim.SGD(net.parameters(), lr=1.0), model=net)
        with accumulator.update() as update:
            for rows in update.micro_batches([[0, 1, 2], [3]] if rank else [[4, 5, 6, 7]]):
                loss = F.cross_entropy(net(x[rows].to(dtype)).float(), y[rows])
                update.backward(loss, count=len(rows))
        found.append([one.float() for one in whole(net)])
    return found


@pytest.mark.parametrize("ranks", [1, 2])
def test_other_types_and_a_world_of_one_go_too(ranks: int) -> None:
    dtypes = [torch.float32, torch.bfloat16]
    rows = list(range(8)) if ranks > 1 else list(range(4, 8))
    net, (x, y) = model(), data()
    F.cross_entropy(net(x[rows]), y[rows]).backward()
    expected = [(one.detach() - one.grad).float() for one in net.parameters()]
    for found in together(in_other_types, ranks, dtypes):
        for values, tolerance in zip(found, (1e-5, 2e-2), strict=True):
            assert all(torch.allclose(a, b, atol=tolerance) for a, b in zip(values, expected, strict=True))


@pytest.mark.parametrize("ranks", [2, 3])
def test_any_cut_gives_the_update_of_one_process(ranks: int) -> None:
    cuts = [with_work_for_all(seed, ranks) for seed in range(6)]
    expected = of_one_process([everybody(cut) for cut in cuts], clip_norm=0.5)
    for found in in_a_row(train, ranks, [(cuts, "last"), (cuts, "every")]):
        for rank in found:
            assert_same(rank["values"], expected, rtol=1e-11)
            assert rank["told"] == found[0]["told"]
            assert [count for count, _ in rank["told"]] == [SAMPLES] * len(cuts)
        assert [rank["micro_batches"] for rank in found] == [len(one) for one in cuts[-1]]


def several(rank: int) -> Any:
    """What cannot be, one after the other; and a plain backward pass afterwards, which averages as ever."""
    net, (x, _) = sharded(2), data()
    accumulator = gg.Accumulator(adam(net), model=net)
    said = []
    try:
        with accumulator.update() as update:
            for rows in update.micro_batches([] if rank else [x]):
                update.backward(net(rows).mean(), count=len(rows))
    except RankError as error:
        said.append(str(error))
    try:
        with accumulator.update() as update:
            update.backward(net(x).mean(), name="a", count=2)
            update.backward(net(x).mean(), name="b", count=2)
    except UpdateError as error:
        said.append(str(error))
    net(x[: 12 * (rank + 1)]).sum().backward()
    return said, [one.grad.full_tensor() for one in net.parameters()]  # type: ignore[union-attr, operator]


def test_what_cannot_be_is_refused_and_the_engine_is_given_back() -> None:
    net, (x, _) = model(), data()
    ((net(x[:12]).sum() + net(x).sum()) / 2).backward()
    for said, gradients in together(several, 2):
        assert "rank 1 has no micro-batch in this window, but another rank has 1" in said[0]
        assert "'b' is a second loss, and under fully_shard there is one sum for all losses" in said[1]
        assert_same(gradients, [one.grad for one in net.parameters()])


class Experts(nn.Module):
    """Three experts of one shape, of which a pass takes one; the third is never used."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.experts = nn.ModuleList(nn.Linear(4, 6) for _ in range(3))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor, which: int) -> Tensor:
        return self.head(self.experts[which](x).tanh())


# Of each rank, for each window, which expert its micro-batches take: others on the other rank, in another order.
TAKEN = [[[0], [0, 1], [1, 0]], [[1], [1, 0], [1, 1]]]


def routed(rank: int, ranks: int, optimizer: type[torch.optim.Optimizer], **options: Any) -> Any:
    """Train with gradgate on several ranks, or on one process on whole batches."""
    from torch.distributed.fsdp import fully_shard

    net = Experts().double()
    if ranks > 1:
        fully_shard(net)
    parameters = list(net.parameters())
    stepper = optimizer(parameters, lr=0.1)
    x = torch.randn(2, 3, 2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    accumulator = gg.Accumulator(stepper, model=net, **options) if ranks > 1 else None
    for window in range(3):
        if accumulator is None:
            stepper.zero_grad()
            passes = [(x[r, window, i], e) for r in range(2) for i, e in enumerate(TAKEN[r][window])]
            (sum(net(part, e).square().mean() for part, e in passes) / len(passes)).backward()
            stepper.step()
            continue
        with accumulator.update() as update:
            for number, expert in enumerate(update.micro_batches(TAKEN[rank][window])):
                update.backward(net(x[rank, window, number], expert).square().mean(), count=6)
    return [getattr(p.detach(), "full_tensor", p.detach)().clone() for p in parameters], [
        bool(stepper.state[p]) for p in parameters
    ]


def test_ranks_may_use_different_parameters() -> None:
    """By itself ``fully_shard`` adds what one rank used to what another one used in its place."""
    expected, stepped = routed(0, 1, torch.optim.AdamW)
    for outcomes in in_a_row(routed_by_ranks, 2, [("last",), ("every",)]):
        if not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):  # torch 2.11
            for error in outcomes:
                assert isinstance(error, RankError)
                assert "ranks have reached different parameters in this window" in str(error)
            continue
        for values, moved in outcomes:
            assert_same(values, expected, rtol=1e-12)
            assert moved == stepped  # the third expert is not stepped on, as it has no gradient


def routed_by_ranks(rank: int, sync: Any) -> Any:
    return routed(rank, 2, torch.optim.AdamW, sync=sync)


class Summands(nn.Module):
    """Two parameters of the same shape, and so of the same place in a buffer if only one of them is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.ones(4, dtype=torch.float64))
        self.second = nn.Parameter(torch.ones(4, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (self.first * x + 10 * self.second * x).mean()


def trained_in_turn(rank: int, shape: tuple[int, int], sync: Any) -> list[Tensor]:
    from torch.distributed.fsdp import fully_shard

    net = Summands()
    fully_shard(net, mesh=init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")))
    accumulator = gg.Accumulator(torch.optim.SGD(net.parameters(), lr=1.0), model=net, sync=sync)
    with accumulator.update() as update:
        for trained in update.micro_batches(["first", "second", "second"]):
            net.reshard()  # type: ignore[operator]
            for name, parameter in net.named_parameters():
                parameter.requires_grad_(name == trained)
            update.backward(net(torch.full((4,), float(rank + 1), dtype=torch.float64)), count=4)
    net.reshard()  # type: ignore[operator]
    return whole(net)


def test_parameters_trained_in_turn_get_their_own_gradients_under_hybrid_sharding() -> None:
    one_by_two, two_by_one = in_a_row(trained_in_turn, 2, [((1, 2), "every"), ((2, 1), "every")])
    for first, second in (*one_by_two, *two_by_one):
        # 3 micro-batches of 4 items on each of the 2 ranks; the items' gradients are x / 4.
        assert_same([first], [torch.full((4,), 1 - (1 + 2) / 6 / 4, dtype=torch.float64)], rtol=1e-12)
        assert_same(
            [second], [torch.full((4,), 1 - 10 * 2 * (1 + 2) / 6 / 4, dtype=torch.float64)], rtol=1e-12
        )
