"""Law 1, cut, for the cuts that a plan makes: the gradient is that of the uncut batch."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import gradgate as gg
from tests.reference import IGNORED, Problem, problem, whole_batch_gradient
from tests.tensors import RTOL

TIME = 6


def batch_of(task: Problem) -> dict[str, Tensor]:
    return {"x": task.x, "y": task.y}


def mask_of(batch: dict[str, Tensor]) -> Tensor:
    return batch["y"] != IGNORED


def by_plan(task: Problem, budget_bytes: int) -> list[Tensor]:
    """One update with a plan, and the gradient that the optimizer received."""
    optimizer = torch.optim.SGD(task.model.parameters(), lr=1.0)
    before = [one.detach().clone() for one in task.model.parameters()]

    def loss_fn(batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return task.loss_sum(batch["x"], batch["y"]), mask_of(batch).sum()

    plan = gg.plan(loss_fn, batch_of(task), budget_bytes=budget_bytes, lengths=mask_of, trim=["x", "y"])
    gg.Accumulator(optimizer).step(loss_fn, batch_of(task), plan=plan, reduction="sum")
    return [old - now.detach() for old, now in zip(before, task.model.parameters(), strict=True)]


def mean_of_means(task: Problem, budget_bytes: int) -> list[Tensor]:
    """Known to be wrong: each micro-batch counts the same."""
    plan = gg.plan(
        lambda b: task.loss_mean(b["x"], b["y"]),
        batch_of(task),
        budget_bytes=budget_bytes,
        lengths=mask_of,
        trim=["x", "y"],
    )
    cut = plan.split(batch_of(task))
    total = sum(task.loss_mean(micro.data["x"], micro.data["y"]) for micro in cut) / len(cut)
    return list(torch.autograd.grad(total, list(task.model.parameters())))


def error(way: Callable[..., list[Tensor]], valid: list[int], budget_bytes: int) -> float:
    task = problem(valid, time=TIME)
    truth = whole_batch_gradient(task)
    received = way(task, budget_bytes)
    largest = max(float(one.abs().max()) for one in truth)
    return max(float((one - other).abs().max()) for one, other in zip(received, truth, strict=True)) / largest


@settings(max_examples=30)
@given(
    valid=st.lists(st.integers(1, TIME), min_size=1, max_size=9),
    budget=st.integers(4000, 12000),
)
def test_a_planned_cut_gives_the_gradient_of_the_uncut_batch(valid: list[int], budget: int) -> None:
    assert error(by_plan, valid, budget) <= RTOL


def test_the_law_rejects_means_of_means() -> None:
    assert error(mean_of_means, [1, 6, 2, 5], 4000) > 1e-3
    assert error(by_plan, [1, 6, 2, 5], 4000) <= RTOL


@pytest.mark.parametrize("budget", [4000, 100_000])
def test_the_cut_is_a_real_one_only_where_it_has_to_be(budget: int) -> None:
    task = problem([1, 6, 2, 5], time=TIME)
    plan = gg.plan(
        lambda b: task.loss_mean(b["x"], b["y"]),
        batch_of(task),
        budget_bytes=budget,
        lengths=mask_of,
        trim=["x", "y"],
    )
    assert (len(plan.parts) > 1) == (budget < 100_000)
