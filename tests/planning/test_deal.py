"""Samples dealt to ranks: everyone once, equal numbers, nearly equal work."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import gradgate as gg

# private: every sample is dealt once, in equal numbers and nearly equal work
from gradgate.planning._micro_batches import deal

WORK = st.lists(st.floats(0, 1000), max_size=60)


@given(work=WORK, ranks=st.integers(1, 7))
def test_every_sample_is_dealt_once_in_equal_numbers_and_nearly_equal_work(
    work: list[float], ranks: int
) -> None:
    hands = deal(work, ranks)
    assert sorted(index for hand in hands for index in hand) == list(range(len(work)))
    sizes = [len(hand) for hand in hands]
    assert max(sizes) - min(sizes) <= 1
    loads = [sum(work[index] for index in hand) for hand in hands]
    assert max(loads) - min(loads) <= max(work, default=0) + 1e-6


def test_the_law_rejects_dealing_in_order() -> None:
    work = [float(length) for length in range(40)]
    halves = [sum(work[:20]), sum(work[20:])]
    assert halves[1] - halves[0] > max(work)
    one, other = (sum(work[index] for index in hand) for hand in deal(work, 2))
    assert abs(one - other) <= 1


def test_a_plan_cuts_each_ranks_share_and_together_they_are_the_batch() -> None:
    torch.manual_seed(0)
    lengths = torch.randint(1, 40, (30,))
    mask = torch.arange(40)[None] < lengths[:, None]
    batch = {"x": torch.randn(30, 40, 4), "mask": mask}
    model = nn.Linear(4, 1)

    def loss_fn(part: dict[str, torch.Tensor]) -> torch.Tensor:
        return (model(part["x"])[..., 0] * part["mask"]).sum()

    plan = gg.plan(loss_fn, batch, budget_bytes="64KiB", lengths="mask", trim=["x", "mask"])
    cuts = [plan.split(batch, rank=rank, ranks=4) for rank in range(4)]
    indices = sorted(index for cut in cuts for micro in cut for index in micro.indices)
    assert indices == list(range(30))
    counts = [sum(micro.count for micro in cut) for cut in cuts]
    assert sum(counts) == int(lengths.sum())
    assert max(counts) - min(counts) <= 40
    assert len(plan.split({key: value[:2] for key, value in batch.items()}, rank=3, ranks=4)) == 0
