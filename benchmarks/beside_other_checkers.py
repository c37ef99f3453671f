"""What do the checkers that can be installed find in this project's corpus of wrong and right scripts?

It runs each tool that is installed; the others are reported as not installed. To run all of them, install them into
a separate environment: pip install torch-preflight torch-audit torcheck torchfix. `python -m corpus.score TOOL`
prints the figures of each category.

    python benchmarks/beside_other_checkers.py [--only gradgate torcheck] [--write]
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

from _alternate import WRITE, report

sys.path.insert(0, str(Path(__file__).parents[1]))
from corpus.score import check, counts
from corpus.scripts import scripts
from corpus.tools import TOOLS, version

CHOSEN = scripts("own")
JOBS = os.cpu_count() or 1

HOW = """
Found: the tool reports any warning or error for the script. Right line: at a marked line, or in the same statement.
Accused: right scripts for which it reports a warning or an error. Time: for tools that read the source, the seconds
for all scripts; for the others, the script's processor time relative to its plain run in the same process, median
over all scripts. Most scripts train for a fraction of a second, and gradgate's time includes its report; over a
whole process of a few seconds it is 1.05 to 1.15 (cost_of_watching.py).

The scripts are gradgate's own test suite, so its row shows what the suite asserts, not what gradgate finds
elsewhere: docs/checking.md has what it finds at first contact. 104 more scripts with one mistake each, and a
corrected version of each, were written without sight of the rules. On the first run, gradgate found 81 of these
mistakes and accused 2 corrected versions (after its rules had been improved with these scripts, 92 and 1).
torch-audit reported 93 and 92 of them, torcheck 16 and 4, torch-preflight 9 and 5, TorchFix 4 and 3.

torch-audit and torcheck have to be called by the script. Here, `autopatch` (at every step, with its static and
initial checks) and `register` with `add_tensor` (changing, nan, inf) are called for each optimizer and the
modules in the variables around its constructor, with the tools' own settings. These tools also look for what
the corpus doesn't contain, such as data on the wrong device; TorchFix reports deprecated and dangerous calls,
and torch-preflight memory leaks and slow pipelines.
"""


def main() -> None:
    names = [name for name in TOOLS if name != "plain"]
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--only", nargs="*", default=names, choices=names)
    arguments.add_argument("--write", action="store_true", help=WRITE)
    given = arguments.parse_args()
    plain = check(TOOLS["plain"], CHOSEN, JOBS)
    wrong = sum(script.is_wrong for script in CHOSEN)
    rows = [
        f"| tool | found, of {wrong} wrong | right line | accused, of {len(CHOSEN) - wrong} right | time |",
        "|---|---|---|---|---|",
    ]
    for name in given.only:
        tool = TOOLS[name]
        if not tool.is_installed:
            rows.append(f"| {name} | not installed | | | |")
            continue
        begun = time.perf_counter()
        outcomes = check(tool, CHOSEN, JOBS)
        cost = f"{time.perf_counter() - begun:.0f} s"
        if tool.watch is not None:
            ratios = [outcomes[script].seconds / plain[script].seconds for script in outcomes]
            cost = f"{statistics.median(ratios):.2f} times the plain run"
        figures = counts(CHOSEN, outcomes)
        found, accused = figures["wrong"]["all"], figures["right"]["all"]["accused"]
        told = f"{found['found']} | {found['on the line']} | {accused} | {cost}"
        rows.append(f"| {version(name)} | {told} |")
        print(rows[-1], flush=True)
    report("Beside other checkers", [*rows, HOW], given.write)


if __name__ == "__main__":
    main()
