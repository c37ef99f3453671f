"""How much faster is a window of sequences on two ranks if a plan distributes it, rather than in order?

In order, as in the usual loop over DistributedSampler: each rank takes its half of the window, 8 sequences at a
time, padded to the longest. By plan: samples are distributed by length, so that ranks finish at the same time, and
each rank's part is split into micro-batches within the same memory. Both make the same update. The time is that of
the slower rank, because ranks synchronize at the end of a window.
"""

import itertools
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from _alternate import Ratio, arguments, report, table
from _models import Transformer
from planned_cut import BY_HAND, LONGEST, WINDOW, WINDOWS, lengths_of_a_window, loss_sum, window_of

import gradgate as gg

RANKS = 2


def of_window(window: dict[str, torch.Tensor], rows: torch.Tensor) -> dict[str, torch.Tensor]:
    longest = int(window["mask"][rows].sum(1).max())
    return {key: value[rows][:, :longest] for key, value in window.items()}


def work(rank: int, folder: str, rounds: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    model = Transformer(width=128, layers=4, time=LONGEST)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    accumulator = gg.Accumulator(optimizer, model=model)
    windows = [window_of(lengths_of_a_window(seed), "cpu") for seed in range(WINDOWS)]
    largest = max(windows, key=lambda window: window["ids"].shape[1])

    def loss_fn(batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        return loss_sum(model, batch), batch["mask"].sum()

    whole = gg.plan(
        lambda part: loss_fn(part)[0], largest, budget_bytes="1TiB", lengths="mask", optimizer=optimizer
    )
    peak = whole.peak_bytes(
        BY_HAND, largest["ids"].shape[1]
    )  # what the loop in order takes for its longest micro-batch
    budget = whole.resident.total_bytes + peak
    plan = gg.plan(
        lambda part: loss_fn(part)[0], largest, budget_bytes=budget, lengths="mask", optimizer=optimizer
    )

    def in_order(window: dict[str, torch.Tensor]) -> gg.Update:
        mine = torch.arange(WINDOW).chunk(RANKS)[rank].split(BY_HAND)
        return accumulator.step_window(loss_fn, [of_window(window, rows) for rows in mine], reduction="sum")

    def by_plan(window: dict[str, torch.Tensor]) -> gg.Update:
        return accumulator.step(loss_fn, window, plan=plan, deal="whole", reduction="sum")

    ways = {"distributed in order": in_order, "distributed by plan": by_plan}
    times: dict[str, list[float]] = {name: [] for name in ways}
    norms = []
    for number, window in zip(range(rounds + 1), itertools.cycle(windows), strict=False):
        for name in list(ways)[:: -1 if number % 2 else 1]:
            dist.barrier()
            start = time.perf_counter()
            update = ways[name](window)
            dist.barrier()
            if number:  # the first is a warm-up
                times[name].append(time.perf_counter() - start)
            norms.append(update.grad_norm)
    if not rank:
        difference = max(abs(a / b - 1) for a, b in zip(norms[::2], norms[1::2], strict=True))
        (Path(folder) / "times").write_text(repr((times, difference)))


def main() -> None:
    question = "A window of sequences on two ranks: distributed by plan, against in order"
    given = arguments(question)
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (folder, given.rounds or 18), nprocs=RANKS)  # type: ignore[no-untyped-call]
        times, difference = eval((Path(folder) / "times").read_text())
    first = next(iter(times))
    results = {}
    for name, found in times.items():
        ratios = [one / base for one, base in zip(found, times[first], strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        results[name] = Ratio(statistics.median(found), statistics.median(ratios), low, high)
    faster = sum(times[first]) / sum(times["distributed by plan"])
    text = table(f"log-normal lengths, {WINDOW} sequences, {RANKS} ranks over gloo", results)
    text += f"\n{faster:.2f} times as fast over all windows. Gradient norms differ by {difference:.0e}.\n"
    report(question, [text], given.write)


if __name__ == "__main__":
    main()
