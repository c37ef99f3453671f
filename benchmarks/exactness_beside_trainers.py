"""How far is the gradient that the optimizer receives from that of the whole batch, here and elsewhere?

The plain loop, gradgate, and whichever of Accelerate, Lightning, transformers, Composer and DeepSpeed are
installed; what is not installed is reported so. Each tool runs in a process of its own, on the same tasks.
To have all of them, install them into an environment of their own, beside this version of torch.

    python benchmarks/exactness_beside_trainers.py [--only gradgate accelerate] [--output result.md]
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
from _alternate import report

TOOLS = {  # its file in trainers/: what it is called, the package that it comes in
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
first step, in float64 on the CPU; median of 5 seeds. "exact": at most 1e-10. "exact to": some factor or sum is
kept in float32. The optimizer is SGD with learning rate 0, so that all steps are taken at the same weights;
the default clips of Trainer and DeepSpeed are switched off. DeepSpeed refuses float64 and is measured in float32.
A star: an option changes this, see below.

- Valid tokens: one sequence in each micro-batch, the rest of its labels is -100.
- Last window: 6 micro-batches in windows of 4, two epochs. Named is what becomes of the last 2.
- bf16: parameters and arithmetic in bf16, against the float64 gradient of the same weights. What no way of adding
  can mend is the rounding within each micro-batch; the next row compares with the same 64 gradients added up in
  float64.
- InfoNCE: each micro-batch knows its own negatives only. No tool here mends that, gradgate neither, nor does it
  say so. BatchNorm: no cut is exact. "warns", "silent": whether the tool said anything about it, anywhere.
- Out of memory: from the second micro-batch of the second update on, a forward pass of more than 8 samples
  raises torch.OutOfMemoryError. Micro-batches have 16 samples, updates 64. Lightning's Tuner tries three updates
  before the training, so it meets the shortage; a later one would be a crash. On a CPU, so of Composer's "auto" no
  more can be said than that it asks for a GPU.
- Time: a 4-layer MLP of width 256, 8 micro-batches of 8, AdamW, float32, progress bars and loggers off. The tool's
  updates and those of a plain loop take turns, one by one, in one process with one thread; median of 300 ratios
  and their middle half. The plain loop against itself shows what the method adds.
"""

SHORT = """\
A star: exact with an option or a recipe of theirs, above; Trainer also, to 1e-7, with transformers' own causal
language models as they are. Out of memory: with the option for it (gradgate: accumulator.step).

"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--output", type=Path, help="also write the result to this Markdown file")
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
        "## As it comes\n\n" + words.main_table(titles, results),
        "## With an option of theirs\n\n" + words.option_table(titles, results),
        "## Lowest and highest of 5 seeds\n\n" + words.spread_table(titles, results),
        "## In short\n\n" + SHORT + words.short_table(in_readme, results),
    ]
    report("The gradient that the optimizer receives, beside trainers", sections, given.output)


def measure_here(tool: str, output: Path) -> None:
    from trainers import _measure

    results = _measure.measure(importlib.import_module(f"trainers.{tool}"))
    output.write_text(json.dumps(results), "utf-8")


def measured(tool: str):
    """Measure a tool in a new process. A string, if there is nothing to measure: why."""
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
