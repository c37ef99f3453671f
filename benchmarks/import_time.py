"""What does ``import gradgate`` add to ``import torch``? The goal is at most 50 ms.

gradgate imports its names on first access. Here, all of them are imported.

Every run is a new process. The two statements take turns, so whatever else the machine does affects both. The
second process also times its two imports separately, because the difference of two medians near one second has
noise as large as the answer.

    python benchmarks/import_time.py [--repeats 15]
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys

import torch

START = "from time import perf_counter as now; start = now(); import torch; middle = now(); "
PLAIN = START + "print(middle - start, 0.0)"
GRADGATE = START + "from gradgate import *; print(now() - start, now() - middle)"


def seconds(program: str) -> tuple[float, float]:
    """Run a program in a new process. It prints the time of all imports, and of those after torch."""
    # Without .pyc files, every import would also compile its source.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    whole, added = map(float, done.stdout.split())
    return whole, added


def line(name: str, values: list[float]) -> str:
    low, _, high = statistics.quantiles(values, n=4)
    return f"{name:32} {1e3 * statistics.median(values):8.1f} {1e3 * low:8.1f} .. {1e3 * high:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats

    for program in (PLAIN, GRADGATE):  # fills the file cache and writes the .pyc files
        seconds(program)
    plain, both, added = [], [], []
    for _ in range(repeats):
        plain.append(seconds(PLAIN)[0])
        whole, after_torch = seconds(GRADGATE)
        both.append(whole)
        added.append(after_torch)

    print(f"Python {platform.python_version()}, torch {torch.__version__}, {os.cpu_count()} cores")
    print(f"{'milliseconds':32} {'median':>8} {'quartiles':>12}")
    print(line("import torch", plain))
    print(line("import torch; from gradgate import *", both))
    print(line("  of which gradgate", added))


if __name__ == "__main__":
    main()
