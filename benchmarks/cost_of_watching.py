"""What does watching by `gradgate check` cost: in the first windows, in later ones, and for whole scripts?

The plain loop runs with unpatched torch. For the watched loop, a watcher is started before each turn and stopped
after it, so the plain loop's turns are unaffected. Starting and stopping are not included in the loop's time. All
times are processor time, and each ratio compares two turns of one round, so other processes disturb little.
"""

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from _alternate import arguments, report
from _models import medium, plain_update, tiny
from torch import nn
from torch.nn import functional as F

from gradgate.checker.recording import Watcher

LATER = 1000  # steps after which the watcher examines a window closely only now and then
ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = (
    "examples/two_losses.py",
    "examples/transfer_learning.py",
    "corpus/right/accumulation/token_counts.py",
    "corpus/right/gan/dcgan_order.py",
    "corpus/right/rl/dqn.py",
)

Update = Callable[[], object]


def accumulating(make: Callable[[str], tuple[nn.Module, list]], device: str) -> Update:  # type: ignore[type-arg]
    """Return the update of a plain loop with 8 micro-batches."""
    model, batches = make(device)
    return partial(plain_update, model, batches, torch.optim.AdamW(model.parameters(), lr=1e-4))


def dqn(device: str) -> Update:
    """Return a step of a small DQN: the shortest steps that people train with."""

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)).to(
            device
        )

    q, target = network(), network()
    optimizer = torch.optim.Adam(q.parameters(), lr=1e-3)
    states, following, rewards = torch.randn(64, 4), torch.randn(64, 4), torch.randn(64)
    actions = torch.randint(2, (64, 1))
    states, following, rewards, actions = (x.to(device) for x in (states, following, rewards, actions))

    def update() -> None:
        with torch.no_grad():
            wanted = rewards + 0.99 * target(following).max(1).values
        optimizer.zero_grad()
        F.smooth_l1_loss(q(states).gather(1, actions).squeeze(1), wanted).backward()
        optimizer.step()

    return update


def turn(update: Update, times: int, *, watch: str) -> float:
    """Return the seconds that some updates take: unwatched, in the first windows, or in later ones."""
    watcher = Watcher()
    if watch:
        watcher.start()
    before = 2 if watch == "later" else 1
    for number in range(before + times):  # from one line, because a backward from a new line is examined
        if number == before:
            start = time.process_time()
        if watch == "later" and not number:
            watcher._recorder.steps = LATER  # the first step now ends the close examination
        update()
    seconds = time.process_time() - start
    watcher.stop()
    return seconds


def ratios(update: Update, rounds: int, times: int) -> tuple[float, dict[str, list[float]]]:
    """Return the seconds of a plain update, and each round's ratios."""
    update()
    found: dict[str, list[float]] = {"first": [], "later": []}
    plain = []
    for number in range(rounds):
        order = ["", "later", "first"]
        order = order[number % 3 :] + order[: number % 3]
        seconds = {watch: turn(update, times, watch=watch) for watch in order}
        plain.append(seconds[""] / times)
        for watch, known in found.items():
            known.append(seconds[watch] / seconds[""])
    return statistics.median(plain), found


def seconds_of(*command: str) -> float:
    """Return the processor time of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    question = "What it costs to be watched"
    given = arguments(question)
    torch.set_num_threads(1)
    windows = [
        row("loop", "windows", "plain, ms", "against the plain loop (median)", "middle half"),
        "|---" * 5 + "|",
    ]
    for name, make, rounds, times in (
        ("tiny", partial(accumulating, tiny), 15, 20),
        ("medium", partial(accumulating, medium), 5, 1),
        ("DQN", dqn, 15, 50),
    ):
        torch.manual_seed(0)
        plain, known = ratios(make(given.device), given.rounds or rounds, times)
        for watch, several in known.items():
            low, middle, high = statistics.quantiles(several, n=4)
            windows.append(
                row(name, watch, f"{1e3 * plain:.2f}", f"{middle:.3f}", f"{low:.3f} to {high:.3f}")
            )
    scripts = [row("script", "plain, s", "`gradgate check` against it", "range of 3"), "|---" * 4 + "|"]
    for script in SCRIPTS:
        pairs = [(seconds_of(script), seconds_of("-m", "gradgate", "check", script)) for _ in range(3)]
        several = sorted(watched / plain for plain, watched in pairs)
        alone = statistics.median(plain for plain, _ in pairs)
        scripts.append(
            row(script, f"{alone:.2f}", f"{several[1]:.2f}", f"{several[0]:.2f} to {several[2]:.2f}")
        )
    report(question, ["\n".join(windows), "", "Whole processes:", "", "\n".join(scripts)], given.write)


if __name__ == "__main__":
    main()
