"""How far is the gradient that the optimizer receives from that of the whole batch, with each tool?

It compares the plain loop, gradgate, and those of Accelerate, Lightning, transformers, Composer and DeepSpeed that
are installed; the others are reported as not installed. Each tool runs in a process of its own, on the same tasks.
To run all of them, install them into a separate environment with this version of torch.

    python benchmarks/exactness_beside_trainers.py [--only gradgate accelerate] [--write]
"""

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

import torch
from _alternate import WRITE, report

TOOLS = {  # file in trainers/: name, and the package that provides it
    "gradgate": ("gradgate", "gradgate"),
    "plain": ("plain loop, loss / k", "torch"),
    "accelerate": ("Accelerate", "accelerate"),
    "lightning": ("Lightning", "lightning"),
    "transformers": ("transformers' Trainer", "transformers"),
    "composer": ("Composer", "mosaicml"),
    "deepspeed": ("DeepSpeed", "deepspeed"),
}
IN_README = ("gradgate", "plain", "accelerate", "lightning", "transformers")
PATIENCE = 900  # seconds for one tool

HOW = """
Error: max |difference| / max |gradient of the whole batch| of the gradient that the optimizer received at its
first step, in float64 on the CPU; median of 5 seeds. "exact" means at most 1e-10. "exact to" means that some factor
or sum is kept in float32. The optimizer is SGD with learning rate 0, so that all steps are taken at the same
weights. The default clipping of Trainer and DeepSpeed is off. DeepSpeed refuses float64 and is measured in float32.
A star: an option changes this, see below.

- Valid tokens: one sequence in each micro-batch; the rest of its labels is -100.
- Last window: 6 micro-batches in windows of 4, two epochs. The cell says what happens to the last 2.
- bf16: parameters and arithmetic in bf16, compared with the float64 gradient of the same weights. No way of adding
  can undo the rounding within each micro-batch, so the next row compares with the same 64 gradients added up in
  float64.
- InfoNCE: each micro-batch knows only its own negatives. No tool here fixes that, including gradgate. BatchNorm: no
  split is exact. "warns" or "silent": whether the tool reported the problem anywhere.
- Out of memory: from the second micro-batch of the second update on, a forward pass of more than 8 samples
  raises torch.OutOfMemoryError. Micro-batches have 16 samples, updates 64. Lightning's Tuner tries three updates
  before training, so it runs into the limit; if memory ran out later, it would crash. Composer's "auto" needs a
  GPU, so it can't be measured on a CPU.
- Time: a 4-layer MLP of width 256, 8 micro-batches of 8, AdamW, float32, progress bars and loggers off. The
  tool's updates and those of a plain loop take turns, one by one, in one process with one thread. The cell is the
  median of 300 ratios and their middle half. The plain loop relative to itself shows what the method adds.
"""

SHORT = """\
A star: exact with an option or a documented recipe, above. Trainer is also exact, to 1e-7, with transformers' own
causal language models. Out of memory: with the option for it (gradgate: accumulator.step).

"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--write", action="store_true", help=WRITE)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)  # measure one tool, write JSON here
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.child:
        measure_here(given.only[0], given.child)
        return
    results = {tool: measured(tool) for tool in given.only}

    from trainers import _words as words

    titles = {tool: title(tool) for tool in given.only}
    in_readme = {tool: titles[tool] for tool in IN_README if tool in titles}
    sections = [
        made_of(given.only),
        HOW,
        "## Defaults\n\n" + words.main_table(titles, results),
        "## With an option or a documented recipe\n\n" + words.option_table(titles, results),
        "## Lowest and highest of 5 seeds\n\n" + words.spread_table(titles, results),
        "## In short\n\n" + SHORT + words.short_table(in_readme, results),
    ]
    report("The gradient that the optimizer receives, beside trainers", sections, given.write)


def measure_here(tool: str, output: Path) -> None:
    from trainers import _measure

    results = _measure.measure(importlib.import_module(f"trainers.{tool}"))
    output.write_text(json.dumps(results), "utf-8")


def measured(tool: str):
    """Measure a tool in a new process. If that is impossible, return the reason as a string."""
    if version(tool) is None:
        return "not installed"
    print(f"measuring {tool} ...", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "results.json")
        command = [sys.executable, str(Path(__file__).resolve()), "--only", tool, "--child", str(output)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE, cwd=folder)
        except subprocess.TimeoutExpired:
            return f"not done after {PATIENCE} s"
        except subprocess.CalledProcessError as error:
            print(error.stderr, file=sys.stderr)
            return f"cannot be run here: {error.stderr.strip().splitlines()[-1]}"
        return json.loads(output.read_text("utf-8"))


def version(tool: str) -> str | None:
    try:
        return metadata.version(TOOLS[tool][1])
    except metadata.PackageNotFoundError:
        return None


def title(tool: str) -> str:
    name, _ = TOOLS[tool]
    return name if tool == "plain" or version(tool) is None else f"{name} {version(tool)}"


def made_of(tools: list[str]) -> str:
    """The commit, and which tool asks for another torch than this one."""
    notes = [
        f"{title(tool)} asks for {wanted} and was installed all the same."
        for tool in tools
        for wanted in (metadata.requires(TOOLS[tool][1]) if version(tool) else None) or []
        if other_torch(wanted)
    ]
    return " ".join([f"gradgate at commit {commit()}.", *notes]) + "\n"


def other_torch(line: str) -> bool:
    from packaging.requirements import Requirement

    wanted = Requirement(line)
    needed = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
    return wanted.name == "torch" and needed and not wanted.specifier.contains(torch.__version__)


def commit() -> str:
    here = Path(__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    changed = " with changes" if git("status", "--porcelain", "--", "../src") else ""
    return (git("log", "-1", "--format=%h", "--", "../src") or "unknown") + changed


if __name__ == "__main__":
    main()
