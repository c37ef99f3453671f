"""What does watching by `gradgate check` cost: to start, in the first windows, and later?

The plain loop runs with unpatched torch. For the watched loop, a watcher is started before each turn and stopped
after it, so the plain loop's turns are unaffected. Starting and stopping are not included in the loop's time.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
from _alternate import arguments, report
from _models import Batch, medium, plain_update, tiny
from torch import nn

from gradgate.checker.recording import Watcher

LATER = 1000  # steps after which the watcher examines a window closely only now and then


def turn(update: Callable[[], object], times: int, *, watch: str) -> float:
    """Return the seconds that some updates take: unwatched, in the first windows, or in later ones."""
    watcher = Watcher()
    if watch:
        watcher.start()
    before = 2 if watch == "later" else 1
    for number in range(before + times):  # from one line, because a backward from a new line is examined
        if number == before:
            start = time.perf_counter()
        if watch == "later" and not number:
            watcher._recorder.steps = LATER  # the first step now ends the close examination
        update()
    seconds = time.perf_counter() - start
    watcher.stop()
    return seconds


def ratios(model: nn.Module, batches: list[Batch], rounds: int, times: int) -> dict[str, list[float]]:
    update = partial(plain_update, model, batches, torch.optim.AdamW(model.parameters(), lr=1e-4))
    update()
    found: dict[str, list[float]] = {"first": [], "later": []}
    for number in range(rounds):
        order = ["", "later", "first"]
        order = order[number % 3 :] + order[: number % 3]
        seconds = {watch: turn(update, times, watch=watch) for watch in order}
        for watch, known in found.items():
            known.append(seconds[watch] / seconds[""])
    return found


def starting(statement: str, rounds: int) -> float:
    """Return the median seconds of a new process that runs a statement."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", statement], check=True)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    question = "What it costs to be watched"
    given = arguments(question)
    torch.set_num_threads(1)
    rows = ["| model | when | time against the plain loop (median) | middle half |", "|---|---|---|---|"]
    for name, make, times in (("tiny", tiny, 20), ("medium", medium, 2)):
        torch.manual_seed(0)
        for watch, known in ratios(*make(given.device), given.rounds or 15, times).items():
            low, middle, high = statistics.quantiles(known, n=4)
            rows.append(f"| {name} | {watch} windows | {middle:.3f} | {low:.3f} to {high:.3f} |")
    plain = starting("import torch", 7)
    watched = starting(
        "from gradgate.checker.recording import Watcher; w = Watcher(); w.start(); w.stop();"
        "from gradgate.checker.rules import check; check(w.log())",
        7,
    )
    rows.append("")
    rows.append(
        f"Start, watch nothing, judge nothing: {watched - plain:.2f} s more than `import torch` ({plain:.2f} s)."
    )
    report(question, ["\n".join(rows)], given.output)


if __name__ == "__main__":
    main()
