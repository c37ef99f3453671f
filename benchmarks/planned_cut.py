"""How much faster is a window of sequences of unequal length if a plan splits it, rather than a hand-written loop?

The hand-written loop takes 8 sequences at a time, in order, pads them to the longest, and divides by the tokens of
the whole window. The plan gets the memory that this loop is estimated to take, and no more. The bound is the time
for the same number of tokens without padding.
"""

import itertools
import math
from collections.abc import Callable
from functools import partial

import torch
from _alternate import alternate, arguments, report, table
from _models import Transformer
from torch import Tensor, nn
from torch.nn import functional as F

import gradgate as gg

WINDOW, BY_HAND, SHORTEST, LONGEST, WINDOWS = 64, 8, 8, 512, 3
PAD = -100

Window = dict[str, Tensor]


def lengths_of_a_window(seed: int) -> list[int]:
    """Log-normal lengths with a mean of about 100, between 8 and 512."""
    torch.manual_seed(seed)
    drawn = torch.randn(WINDOW).mul(0.9).add(math.log(70)).exp().round().int()
    return drawn.clamp(SHORTEST, LONGEST).tolist()


def window_of(lengths: list[int], device: str) -> Window:
    """Random sequences, padded on the right to the longest."""
    width = max(lengths)
    valid = torch.arange(width)[None] < torch.tensor(lengths)[:, None]
    ids = torch.where(valid, torch.randint(512, (len(lengths), width)), 0)
    labels = torch.where(valid, torch.randint(512, (len(lengths), width)), PAD)
    return {key: value.to(device) for key, value in (("ids", ids), ("labels", labels), ("mask", valid))}


def loss_sum(model: nn.Module, batch: Window) -> Tensor:
    return F.cross_entropy(
        model(batch["ids"]).flatten(0, 1), batch["labels"].flatten(), ignore_index=PAD, reduction="sum"
    )


def by_hand(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    windows: "itertools.cycle[Window]",
    *,
    grouped: bool = False,
) -> None:
    window = next(windows)
    lengths = window["mask"].sum(1)
    order = lengths.argsort() if grouped else torch.arange(len(lengths), device=lengths.device)
    tokens = lengths.sum()
    for rows in order.split(BY_HAND):
        longest = int(lengths[rows].max())
        part = {key: value[rows][:, :longest] for key, value in window.items()}
        (loss_sum(model, part) / tokens).backward()
    optimizer.step()
    optimizer.zero_grad()


def by_plan(
    model: nn.Module, accumulator: gg.Accumulator, plan: gg.Plan, windows: "itertools.cycle[Window]"
) -> None:
    def loss_fn(batch: Window) -> tuple[Tensor, Tensor]:
        return loss_sum(model, batch), batch["mask"].sum()

    accumulator.step(loss_fn, next(windows), plan=plan, reduction="sum")


def gradients(model: nn.Module, optimizer: torch.optim.Optimizer, way: Callable[[], object]) -> list[Tensor]:
    """Return the gradients that the optimizer received."""
    seen: list[Tensor] = []
    hook = optimizer.register_step_pre_hook(
        lambda *_: seen.extend(one.grad.clone() for one in model.parameters() if one.grad is not None)
    )
    way()
    hook.remove()
    return seen


def compare(title: str, lengths: list[list[int]], rounds: int, device: str) -> str:
    torch.manual_seed(0)
    model = Transformer(width=128, layers=4, time=LONGEST).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)  # so that every window runs with the same model
    accumulator = gg.Accumulator(optimizer)
    windows = [window_of(each, device) for each in lengths]
    largest = max(windows, key=lambda window: window["ids"].shape[1])
    planned = gg.plan(
        partial(loss_sum, model), largest, budget_bytes="1TiB", lengths="mask", optimizer=optimizer
    )
    # The budget is what the hand-written loop takes for its longest micro-batch.
    peak = planned.peak_bytes(BY_HAND, largest["ids"].shape[1])
    budget = planned.resident.total_bytes + peak
    plan = gg.plan(
        partial(loss_sum, model), largest, budget_bytes=budget, lengths="mask", optimizer=optimizer
    )

    tokens = sum(map(sum, lengths))
    mean = round(tokens / (WINDOW * len(lengths)))
    dense = [window_of([mean] * WINDOW, device) for _ in lengths]
    dense_plan = gg.plan(partial(loss_sum, model), dense[0], budget_bytes=budget, lengths="mask")
    cycle = itertools.cycle
    ways: dict[str, Callable[[], object]] = {
        f"by hand, {BY_HAND} at a time": partial(by_hand, model, optimizer, cycle(windows)),
        f"by hand, sorted by length, {BY_HAND} at a time": partial(
            by_hand, model, optimizer, cycle(windows), grouped=True
        ),
        "gradgate, by plan": partial(by_plan, model, accumulator, plan, cycle(windows)),
        "bound: as many tokens, none padded": partial(by_plan, model, accumulator, dense_plan, cycle(dense)),
    }
    one, other = (
        gradients(model, optimizer, partial(way, cycle(windows[:1])))
        for way in (partial(by_hand, model, optimizer), partial(by_plan, model, accumulator, plan))
    )
    scale = max(float(each.abs().max()) for each in one)
    error = max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True)) / scale
    results = alternate(ways, rounds=rounds * len(windows), warm_up=len(windows), device=device)
    faster = 1 / results["gradgate, by plan"].ratio
    split = plan.split(windows[0])
    padded = sum(BY_HAND * max(each[i : i + BY_HAND]) for each in lengths for i in range(0, WINDOW, BY_HAND))
    return table(title, results) + (
        f"\n{faster:.2f} times as fast. {1 - tokens / padded:.0%} of the columns are padding by hand, "
        f"{split.padding:.0%} by plan ({len(split)} micro-batches in the first window). Gradients differ by "
        f"{error:.1e} of the largest.\n"
    )


def main() -> None:
    question = "A window of sequences, split by plan, against the loop by hand"
    given = arguments(question)
    if given.device == "cpu":
        torch.set_num_threads(1)
    rounds = given.rounds or 5
    unequal = [lengths_of_a_window(seed) for seed in range(WINDOWS)]
    sections = [
        compare(f"log-normal lengths, {WINDOW} sequences", unequal, rounds, given.device),
        compare(f"equal lengths of 100, {WINDOW} sequences", [[100] * WINDOW], 8 * rounds, given.device),
    ]
    report(question, sections, given.write)


if __name__ == "__main__":
    main()
