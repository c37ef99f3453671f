"""A plan over ranks: samples dealt so that ranks finish together, and the update of one process."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

import gradgate as gg
from gradgate.errors import EstimateWarning, OptionError
from tests.ranks.processes import together
from tests.reference import assert_same

pytestmark = pytest.mark.slow

SAMPLES, LONGEST, RANKS = 20, 32, 3


def batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, LONGEST + 1, (SAMPLES,), generator=generator)
    lengths[0] = LONGEST
    mask = torch.arange(LONGEST)[None] < lengths[:, None]
    return {"x": torch.randn(SAMPLES, LONGEST, 4, generator=generator, dtype=torch.float64), "mask": mask}


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def loss_of(net: nn.Module, part: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    return (net(part["x"])[..., 0].square() * part["mask"]).sum(), part["mask"].sum()


def train(rank: int) -> Any:
    net, whole = model(), batch()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    accumulator = gg.Accumulator(optimizer, model=net)
    plan = gg.plan(
        lambda part: loss_of(net, part)[0],
        whole,
        budget_bytes="40KiB",
        lengths="mask",
        trim=["x", "mask"],
    )
    tokens = []

    def loss_fn(part: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        tokens.append(int(part["mask"].sum()))
        return loss_of(net, part)

    for _ in range(2):
        update = accumulator.step(loss_fn, whole, plan=plan, deal="whole", reduction="sum")
    return [one.detach() for one in net.parameters()], update.count, sum(tokens) // 2


def trained_on_one_process() -> nn.Module:
    net, whole = model(), batch()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        loss, count = loss_of(net, whole)
        (loss / count).backward()
        optimizer.step()
    return net


def test_a_batch_that_is_dealt_gives_the_update_of_one_process_and_balanced_ranks() -> None:
    net, total = trained_on_one_process(), int(batch()["mask"].sum())
    found = together(train, RANKS)
    for values, counted, _ in found:
        assert_same(values, [one.detach() for one in net.parameters()])
        assert counted == total
    tokens = [own for _, _, own in found]
    assert sum(tokens) == total
    assert max(tokens) - min(tokens) <= LONGEST


def sharded(rank: int) -> list[Tensor]:
    """Plan before the first pass, in which ``fully_shard`` gathers parameters for the first time, and after it.

    Before each plan, another one raises between its forward and its backward pass.
    """
    net, whole = model(), batch()
    for part in (net[0], net[2], net):
        fully_shard(part)
    accumulator = gg.Accumulator(torch.optim.SGD(net.parameters(), lr=0.1), model=net)

    def planned(part: Any) -> Any:
        return loss_of(net, part)[0]

    def with_item(part: Any) -> Any:
        loss, count = loss_of(net, part)
        return loss, count.item()

    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("error", EstimateWarning)
            with pytest.raises(OptionError, match="fully_shard over several ranks"):
                gg.plan(with_item, whole, budget_bytes="40KiB")
            plan = gg.plan(planned, whole, budget_bytes="40KiB")
        accumulator.step(lambda part: loss_of(net, part), whole, plan=plan, deal="whole", reduction="sum")
    return [one.detach().full_tensor() for one in net.parameters()]  # type: ignore[attr-defined]


def test_a_plan_leaves_sharded_modules_fit_for_training() -> None:
    net = trained_on_one_process()
    for values in together(sharded, 2):
        assert_same(values, [one.detach() for one in net.parameters()])


def without_room(rank: int) -> Any:
    net, whole = model(), batch()
    accumulator = gg.Accumulator(torch.optim.SGD(net.parameters(), lr=0.1), model=net)
    short = {key: value[:, : 3 if rank else LONGEST] for key, value in whole.items()}
    plan = gg.plan(
        lambda part: loss_of(net, part)[0],
        {key: value[::RANKS] for key, value in whole.items()},
        budget_bytes="40KiB",
        lengths="mask",
        trim=["x", "mask"],
    )
    if not rank:
        plan.budget_bytes = plan.resident.total_bytes + 1  # nothing fits here
    try:
        accumulator.step(lambda part: loss_of(net, part), short, plan=plan, reduction="sum")
    except gg.errors.GradgateError as error:
        return f"{type(error).__name__}: {error}"
    return None


def test_a_plan_that_fails_on_one_rank_stops_all() -> None:
    own, other = together(without_room, 2)
    assert own.startswith("BudgetError: plan: sample")
    assert other.startswith("RankError: update: rank 0 stopped in this window: BudgetError: plan: sample")
