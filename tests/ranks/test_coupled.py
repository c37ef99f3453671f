"""Law 9 over ranks: representations of all of them in one loss, whatever each has; one process's update."""

from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import gradgate as gg
from gradgate.errors import RankError
from tests.ranks.processes import in_a_row, together
from tests.ranks.work import adam, data, model
from tests.reference import assert_same

pytestmark = pytest.mark.slow

Cut = list[list[list[int]]]

CUTS: dict[str, Cut] = {
    "two ranks": [[[*range(9)], [9], []], [[*range(10, 24)]]],
    "three ranks": [[[0]], [[*range(1, 12)], [12]], [[*range(13, 23)], [23], []]],
    "a rank without micro-batches": [[[*range(9)], [*range(9, 12)]], [], [[*range(12, 24)]]],
}


class Head(nn.Module):
    """A loss with a parameter of its own, which every rank computes as a whole."""

    def __init__(self, *, shared: bool = False) -> None:
        super().__init__()
        self.shared = shared
        self.log_temperature = nn.Parameter(torch.tensor([-1.0], dtype=torch.float64))

    def forward(self, z: dict[str, Tensor]) -> Tensor:
        left, right = (
            F.normalize(z["codes"], dim=1),
            F.normalize(z["codes"].sin() + z["classes"][:, None], dim=1),
        )
        group = torch.distributed.group.WORLD if self.shared else None
        temperature = self.log_temperature.exp()
        loss: Tensor = gg.losses.clip_loss(left, right, temperature=temperature, group=group)
        loss += gg.losses.siglip_loss(left, right, temperature=temperature, group=group)
        return loss + z["total"].sum() / 24


def encoder(net: nn.Module) -> Any:
    x, y = data()

    def encode(rows: list[int]) -> dict[str, Tensor]:
        codes = net(x[rows])
        return {"codes": codes, "classes": y[rows], "total": codes.square().sum()}

    return encode


def of_one_process(updates: int, **options: Any) -> list[Tensor]:
    """The slow truth: the whole batch, one process, plain autograd."""
    both = nn.ModuleList([model(), Head()])
    optimizer = adam(both)
    for _ in range(updates):
        optimizer.zero_grad()
        z = encoder(both[0])([*range(24)])
        both[1]({**z, "total": z["total"][None]}).backward()
        nn.utils.clip_grad_norm_(both.parameters(), options["clip_norm"])
        optimizer.step()
    return [parameter.detach() for parameter in both.parameters()]


def train(rank: int, cut: Cut, kind: str, fails: str | None = None, shared: bool = False) -> dict[str, Any]:
    both = nn.ModuleList([model(), Head(shared=shared)])
    net: nn.Module = both[0]
    if kind == "DDP":
        net = DistributedDataParallel(net)
    elif kind == "fully_shard":
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (len(cut),))
        for module in (both[0][0], both[0][2], both[0], both[1]):  # type: ignore[index]
            fully_shard(module, mesh=mesh)
    accumulator = gg.Accumulator(adam(both), model=[net, both[1]], clip_norm=0.5)
    encode = encoder(net)

    seen: list[list[int]] = []

    def failing(rows: list[int]) -> dict[str, Tensor]:
        if fails == "other dtypes" and rank == 1:
            return {key: value.float() for key, value in encode(rows).items()}
        seen.append(rows)
        if rank == 1 and fails == ("first" if seen.count(rows) == 1 else "second"):
            raise ValueError("no such file")
        return encode(rows)

    for _ in range(2):
        with accumulator.update() as update:
            if fails == "absent" and rank == 1:
                update.backward(net(data()[0]).sum(), count=24)
            else:
                update.backward_coupled(failing if fails else encode, cut[rank], both[1])
    values = [p.full_tensor() if hasattr(p, "full_tensor") else p.clone() for p in both.parameters()]
    return {
        "values": [value.detach() for value in values],
        "told": (update.loss, update.count, update.grad_norm),
        "micro_batches": update.micro_batch_count,
    }


WAYS = [
    *((name, kind, False) for name in CUTS for kind in ("no wrapper", "DDP", "fully_shard")),
    *((name, "no wrapper", True) for name in CUTS),
]


def cut_for(name: str, kind: str) -> Cut:
    return [rank or [[]] for rank in CUTS[name]] if kind == "fully_shard" else CUTS[name]  # it waits for all


@cache
def trained(ranks: int) -> dict[tuple[str, str, bool], list[Any]]:
    """What each of so many ranks returned, in every way."""
    ways = [way for way in WAYS if len(CUTS[way[0]]) == ranks]
    rows = [(cut_for(name, kind), kind, None, shared) for name, kind, shared in ways]
    return dict(zip(ways, in_a_row(train, ranks, rows), strict=True))


@pytest.mark.parametrize(("name", "kind", "shared"), WAYS)
def test_ranks_train_as_one_process_does(name: str, kind: str, shared: bool) -> None:
    cut = cut_for(name, kind)
    results = trained(len(cut))[name, kind, shared]
    for result in results:
        assert not isinstance(result, BaseException), result
        assert_same(result["values"], of_one_process(2, clip_norm=0.5))
        assert result["told"] == results[0]["told"]
        assert result["told"][1] == 24
    assert [result["micro_batches"] for result in results] == [len(rank) for rank in cut]


@pytest.mark.parametrize(
    ("fails", "message"),
    [
        ("first", "rank 1 stopped in this window: ValueError: no such file"),
        ("second", "rank 1 stopped in this window: ValueError: no such file"),
        ("other dtypes", r"the representations of rank 0 are .*float64.*; those of rank 1 are .*float32"),
        ("absent", r"rank 0 called update\.backward_coupled\(\.\.\.\) and others did not"),
    ],
)
def test_a_rank_that_fails_stops_all_of_them_at_once(fails: str, message: str) -> None:
    results = together(train, 2, CUTS["two ranks"], "no wrapper", fails)
    assert isinstance(results[0], RankError)
    assert isinstance(results[1], RankError if fails in ("other dtypes", "absent") else ValueError)
    with pytest.raises(RankError, match=message):
        raise results[0]


def lonely_losses(rank: int, cut: Cut) -> list[Tensor]:
    """Known to be wrong: each rank compares only its own items, and gradients are averaged."""
    both = nn.ModuleList([model(), Head()])
    optimizer = adam(both)
    z = encoder(both[0])([row for rows in cut[rank] for row in rows])
    (both[1]({**z, "total": z["total"][None]}) / len(cut)).backward()
    for parameter in both.parameters():
        torch.distributed.all_reduce(parameter.grad)
    nn.utils.clip_grad_norm_(both.parameters(), 0.5)
    optimizer.step()
    return [parameter.detach() for parameter in both.parameters()]


def test_the_law_rejects_a_loss_per_rank() -> None:
    (result, _) = together(lonely_losses, 2, CUTS["two ranks"])
    with pytest.raises(AssertionError, match="off by"):
        assert_same(result, of_one_process(1, clip_norm=0.5))
