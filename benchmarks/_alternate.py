"""Time variants against each other, taking turns in one process, so whatever slows the machine slows all."""

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"
WRITE = "write the result to results/, in place of the last one"


@dataclass(frozen=True)
class Ratio:
    """Time relative to the first variant: the median of the rounds' ratios, and the middle half of them."""

    seconds: float
    ratio: float
    low: float
    high: float


def alternate(
    variants: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    warm_up: int = 5,
    device: str = "cpu",
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Ratio]:
    """Run every variant once per round, rotate their order each round, and compare each round with itself."""
    # Freeing one large block raises glibc's thresholds for returning memory to the system. Otherwise a benchmark
    # measures how often gradients of some 128 KiB are given back and faulted in again, which varies by process.
    torch.empty(1 << 22)
    names = list(variants)
    for _ in range(warm_up):
        for run in variants.values():
            run()
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            _settle(device)
            start = clock()
            variants[name]()
            _settle(device)
            times[name].append(clock() - start)
    first = times[names[0]]
    results = {}
    for name in names:
        ratios = sorted(seconds / base for seconds, base in zip(times[name], first, strict=True))
        low, _, high = statistics.quantiles(ratios, n=4)
        results[name] = Ratio(statistics.median(times[name]), statistics.median(ratios), low, high)
    return results


def _settle(device: str) -> None:
    if device != "cpu":
        torch.accelerator.synchronize()


def table(title: str, results: Mapping[str, Ratio]) -> str:
    """Return the results as a Markdown table."""
    rows = [
        f"### {title}",
        "",
        "| variant | ms per update (median) | ratio (median) | middle half |",
        "|---|---|---|---|",
    ]
    rows += [
        f"| {name} | {result.seconds * 1e3:.3f} | {result.ratio:.3f} | {result.low:.3f} to {result.high:.3f} |"
        for name, result in results.items()
    ]
    return "\n".join(rows) + "\n"


def arguments(question: str) -> argparse.Namespace:
    """Parse the options of every benchmark."""
    parser = argparse.ArgumentParser(description=question)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, help="how often each variant runs")
    parser.add_argument("--write", action="store_true", help=WRITE)
    return parser.parse_args()


def report(question: str, sections: list[str], write: bool) -> None:
    """Print the sections under a heading that says how and when they were measured, and write them if asked."""
    hardware = (
        torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or cpu_name()
    )
    head = (
        f"# {question}\n\n`{' '.join(['python', *sys.argv])}`, Python {platform.python_version()}, torch "
        f"{torch.__version__}, {hardware}, {torch.get_num_threads()} thread(s), "
        f"{datetime.now(timezone.utc).date().isoformat()}\n"
    )
    text = "\n".join([head, *sections])
    print(text)
    if write:
        (RESULTS / f"{Path(sys.argv[0]).stem}.md").write_text(text, "utf-8")


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.machine()
    names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
    return names[0] if names else platform.machine()
