"""Run a checker over the corpus, and print how many mistakes it finds and how many right scripts it accuses.

    python -m corpus.score gradgate [--set regression] [--jobs 4] [--json score.json]

A tool is one of corpus/tools.py, or module:function, a function that gets a script's path, runs the script and
returns its alarms. It is given copies without the marks and the docstrings.
"""

import argparse
import gc
import json
import multiprocessing
import multiprocessing.connection
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corpus.scripts import Script, scripts
from corpus.tools import TOOLS, Alarm, Tool, tool_named, version

PATIENCE = 120  # seconds for one script; the slowest needs 10


@dataclass(frozen=True)
class Outcome:
    """What a tool reported for one script, and the processor time of the run."""

    alarms: list[Alarm]
    seconds: float = 0.0
    failed: str = ""

    @property
    def warns(self) -> bool:
        return any(not alarm.is_note for alarm in self.alarms)


def check(tool: Tool, chosen: Sequence[Script], jobs: int) -> dict[str, Outcome]:
    """Run a tool over copies of the scripts; return what it reports, by the scripts' names."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place).resolve()
        copies = {folder / f"{number:04}" / "train.py": script for number, script in enumerate(chosen)}
        for copy, script in copies.items():
            copy.parent.mkdir()
            copy.write_text(script.without_hints(), "utf-8")
        if tool.watch is not None:
            return {copies[copy].script: outcome for copy, outcome in _watched(tool, list(copies), jobs)}
        assert tool.read is not None
        outcomes: dict[str, Outcome] = {script.script: Outcome([]) for script in chosen}
        for file, alarm in tool.read(folder):
            outcomes[copies[file].script].alarms.append(alarm)
        return outcomes


def _watched(tool: Tool, copies: Sequence[Path], jobs: int) -> Iterator[tuple[Path, Outcome]]:
    """Run each script in a fork of this process, which has imported what the scripts and the tool need."""
    import torch

    torch.set_num_threads(1)  # the tensors are small, and a fork must not inherit threads
    with tempfile.TemporaryDirectory() as place:
        empty = Path(place, "train.py")
        empty.write_text("import sklearn.datasets\nimport torch._dynamo\nimport torch.utils.data\n", "utf-8")
        assert tool.watch is not None
        tool.watch(empty)  # imports the tool
    gc.collect()
    gc.freeze()  # a fork that collects garbage would copy all that was imported
    forks = multiprocessing.get_context("fork")
    waiting, running = list(reversed(copies)), {}
    while waiting or running:
        while waiting and len(running) < jobs:
            ours, theirs = forks.Pipe(duplex=False)
            process = forks.Process(target=_in_fork, args=(tool, waiting[-1], theirs))
            process.start()
            theirs.close()
            running[ours] = (process, waiting.pop(), time.monotonic() + PATIENCE)
        for ours in multiprocessing.connection.wait(list(running), timeout=1):
            process, copy, _ = running.pop(ours)
            try:
                yield copy, ours.recv()
            except EOFError:
                yield copy, Outcome([], failed="the process ended without a result")
            process.join()
        for ours, (process, copy, until) in list(running.items()):
            if time.monotonic() > until:
                process.kill()
                process.join()
                del running[ours]
                yield copy, Outcome([], failed=f"it ran for more than {PATIENCE} seconds")


def _in_fork(tool: Tool, copy: Path, answer: Any) -> None:
    import torch

    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    os.chdir(copy.parent)
    torch.manual_seed(0)
    begun = time.process_time()
    assert tool.watch is not None
    try:
        alarms, failed = tool.watch(copy), ""
    except Exception as error:  # noqa: BLE001  (a failure of the tool is a result)
        alarms, failed = [], repr(error)
    answer.send(Outcome(alarms, time.process_time() - begun, failed))
    answer.close()


Figures = dict[str, dict[str, int]]


def counts(chosen: Sequence[Script], outcomes: Mapping[str, Outcome]) -> dict[str, Figures]:
    """Return the figures of the wrong scripts by category and of the right ones by topic, and of all of both."""
    figures: dict[str, Figures] = {}
    for script in chosen:
        outcome = outcomes[script.script]
        if script.is_wrong:
            of_script = {
                "found": outcome.warns,
                "on the line": any(
                    alarm.line in script.marked_lines for alarm in outcome.alarms if not alarm.is_note
                ),
                "only a note": not outcome.warns
                and any(alarm.is_note and alarm.category == script.category for alarm in outcome.alarms),
            }
        else:
            of_script = {"accused": outcome.warns}
        of_script |= {"failed": bool(outcome.failed)}
        rows = figures.setdefault("wrong" if script.is_wrong else "right", {})
        for name in filter(None, ("all", script.kind)):
            row = rows.setdefault(name, dict.fromkeys(["scripts", *of_script], 0))
            row["scripts"] += 1
            for key, value in of_script.items():
                row[key] += value
    return figures


def table(figures: Mapping[str, Figures]) -> str:
    """Return the figures as Markdown tables."""
    lines: list[str] = []
    for kind, rows in figures.items():
        columns = list(rows["all"])
        lines += ["", f"| {kind} scripts | {' | '.join(columns[1:])} |", "|---" * len(columns) + "|"]
        for name in [*sorted(rows.keys() - {"all"}), "all"]:
            row = rows[name]
            told = " | ".join(str(row[column]) for column in columns[1:])
            lines.append(f"| {row['scripts']} {name} | {told} |")
    return "\n".join(lines[1:])


def main() -> None:
    """Read the command line, and print the score."""
    parser = argparse.ArgumentParser(prog="python -m corpus.score", description=__doc__.partition("\n")[0])
    parser.add_argument("tool", help=f"{', '.join(TOOLS)}, or module:function")
    parser.add_argument(
        "--set", default="own", help="own (default), regression, all, or a name in corpus/unseen"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="scripts at a time")
    parser.add_argument("--json", type=Path, help="write the score, with each script's alarms, to this file")
    given = parser.parse_args()
    tool = tool_named(given.tool)
    if not tool.is_installed:
        sys.exit(f"score: {given.tool} is not installed. Run pip install {given.tool} first.")
    chosen = scripts(given.set)
    if not chosen:
        sys.exit(f"score: there is no set {given.set!r} in corpus/index.jsonl.")
    begun = time.perf_counter()
    outcomes = check(tool, chosen, given.jobs)
    seconds = time.perf_counter() - begun
    figures = counts(chosen, outcomes)
    print(f"{version(given.tool)} on {len(chosen)} scripts of the set {given.set!r}, {seconds:.0f} s\n")
    print(table(figures))
    for name, outcome in outcomes.items():
        if outcome.failed:
            print(f"{name}: {outcome.failed}")
    if given.json:
        told = {
            "tool": version(given.tool),
            "set": given.set,
            "figures": figures,
            "scripts": {
                name: {"alarms": [alarm._asdict() for alarm in one.alarms], "seconds": one.seconds}
                | ({"failed": one.failed} if one.failed else {})
                for name, one in outcomes.items()
            },
        }
        given.json.write_text(json.dumps(told, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
