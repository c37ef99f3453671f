"""What do the checkers that can be installed find in this project's corpus of wrong and right scripts?

It runs each tool that is installed; the others are reported as not installed. To run all of them, install them into
a separate environment: pip install torch-preflight torch-audit torcheck torchfix.

    python benchmarks/beside_other_checkers.py [--only gradgate torcheck] [--write]
"""

import argparse
import ast
import contextlib
import importlib.util
import io
import json
import os
import re
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from _alternate import WRITE, report

CORPUS = Path(__file__).parents[1] / "tests" / "scripts"
WRONG, RIGHT = sorted(CORPUS.glob("wrong/*/*.py")), sorted(CORPUS.glob("right/*/*.py"))
MARK = re.compile(r"# expect: [a-z-]+$", re.MULTILINE)
STATIC = {"torch-preflight": "torch_preflight", "torchfix": "torchfix"}
DYNAMIC = {"gradgate": "gradgate", "torch-audit": "torch_audit", "torcheck": "torcheck"}
PATIENCE = 1800  # seconds for one tool

Lines = list[int]  # of what a tool reports; 0 where it names no line

HOW = """
Found: the tool reports any warning or error for the script. Right line: at a marked line, or in the same statement.
Accused: right scripts for which it reports a warning or an error. Time: for tools that read the source, the seconds
for all scripts; for the others, the script's processor time relative to its plain run in the same process, median
over all scripts. Most scripts train for a fraction of a second, and gradgate's time includes its report; over a
whole process of a few seconds it is 1.05 to 1.15 (cost_of_watching.py).

The scripts are gradgate's own test suite, so its row shows what the suite asserts, not what gradgate finds
elsewhere. Other people, who had not seen the rules, wrote 104 more scripts with one mistake each, and a corrected
version of each. On the first run, gradgate found 81 of these mistakes and accused 2 corrected versions (after its
rules had been improved with these scripts, 92 and 1). torch-audit reported 93 and 92 of them, torcheck 16 and 4,
torch-preflight 9 and 5, TorchFix 4 and 3.

torch-audit and torcheck have to be called by the script. Here, `autopatch` (at every step, with its static and
initial checks) and `register` with `add_tensor` (changing, nan, inf) are called for each optimizer and the
modules in the variables around its constructor, with the tools' own settings. These tools also look for what
the corpus doesn't contain, such as data on the wrong device; TorchFix reports deprecated and dangerous calls,
and torch-preflight memory leaks and slow pipelines.
"""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--only", nargs="*", default=[*DYNAMIC, *STATIC], choices=[*DYNAMIC, *STATIC])
    arguments.add_argument("--write", action="store_true", help=WRITE)
    arguments.add_argument("--measure", choices=DYNAMIC, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.measure:
        print(json.dumps(measured(given.measure)))
        return
    rows = [
        f"| tool | found, of {len(WRONG)} wrong | right line | accused, of {len(RIGHT)} right | time |",
        "|---|---|---|---|---|",
    ]
    for tool in given.only:
        rows.append(row(tool))
        print(rows[-1], flush=True)
    report("Beside other checkers", [*rows, HOW], given.write)


def row(tool: str) -> str:
    """Return the line of the table for one tool."""
    if importlib.util.find_spec({**STATIC, **DYNAMIC}[tool]) is None:
        return f"| {tool} | not installed | | | |"
    begun = time.perf_counter()
    if tool in STATIC:
        found = reported_by(tool)
        cost = f"{time.perf_counter() - begun:.0f} s"
    else:
        environment = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--measure", tool]
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, env=environment, check=True
        )
        answer = json.loads(ran.stdout.splitlines()[-1])
        found, cost = answer["found"], f"{answer['times']:.2f} times the plain run"
    wrong = [(script, found.get(str(script), [])) for script in WRONG]
    at_line = sum(any(line in marked(script) for line in lines) for script, lines in wrong)
    accused = sum(bool(found.get(str(script))) for script in RIGHT)
    name = f"{tool} {metadata.version(tool)}"
    return f"| {name} | {sum(bool(lines) for _, lines in wrong)} | {at_line} | {accused} | {cost} |"


def marked(script: Path) -> set[int]:
    """Return the lines of the statements that a wrong script marks."""
    text = script.read_text("utf-8")
    lines = {n for n, line in enumerate(text.splitlines(), 1) if MARK.search(line)}
    statements = [
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt) and not hasattr(node, "body")
    ]
    spans = [range(node.lineno, (node.end_lineno or node.lineno) + 1) for node in statements]
    return lines | {line for span in spans for line in span if lines & set(span)}


# Tools that read the source


def reported_by(tool: str) -> dict[str, Lines]:
    """Run a static tool over copies without the marks, and return what it reports, by script."""
    with tempfile.TemporaryDirectory() as folder:
        originals = {}
        for script in (*WRONG, *RIGHT):
            copy = Path(folder) / script.relative_to(CORPUS)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(MARK.sub("", script.read_text("utf-8")), "utf-8")
            originals[str(copy)] = str(script)
        command = [str(Path(sys.executable).with_name(tool)), folder]
        if tool == "torch-preflight":
            command[1:1] = ["check", "--format", "json"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        found: dict[str, Lines] = {}
        for file, line in preflight(ran.stdout) if tool == "torch-preflight" else torchfix(ran.stdout):
            found.setdefault(originals[str(Path(file))], []).append(line)
        return found


def preflight(output: str) -> Iterator[tuple[str, int]]:
    """Read torch-preflight's JSON."""
    for each in json.loads(output)["diagnostics"]:
        if each["severity"] in ("warning", "error"):
            yield each["path"], each["line"]


def torchfix(output: str) -> Iterator[tuple[str, int]]:
    """Read TorchFix's lines: file:line:column: code message."""
    for file, line in re.findall(r"^(.+?\.py):(\d+):\d+: TOR", output, re.MULTILINE):
        yield file, int(line)


# Tools that watch a run


def measured(tool: str) -> dict[str, Any]:
    """Run all scripts plainly and with a tool, in turns; return what it reports and the median of the ratios."""
    runs: dict[str, Callable[[Path], Lines]] = {
        "gradgate": with_gradgate,
        "torch-audit": with_torch_audit,
        "torcheck": with_torcheck,
    }
    found, ratios = {}, []
    os.chdir(tempfile.mkdtemp())
    for script in (*WRONG, *RIGHT):
        plain = _seconds(lambda script=script: _run(script))[0]
        watched, lines = _seconds(lambda script=script: runs[tool](script))
        found[str(script)] = lines
        ratios.append(watched / plain)
    return {"found": found, "times": statistics.median(ratios)}


def _seconds(act: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.process_time()
    result = act()
    return time.process_time() - begun, result


def _run(script: Path) -> BaseException | None:
    """Run a script as python does, quietly; return what ended it."""
    sys.argv[:] = [str(script)]
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            runpy.run_path(str(script), run_name="__main__")
    except (Exception, SystemExit) as end:  # noqa: BLE001  (a script may end in any way)
        return end
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_grad_enabled(True)
    return None


def with_gradgate(script: Path) -> Lines:
    """Watch a script, and judge its log."""
    from gradgate.checker.recording import Watcher
    from gradgate.checker.rules import check

    watcher = Watcher(str(script))
    watcher.start()
    _run(script)
    watcher.stop()
    findings = [one for one in check(watcher.log()) if one.severity != "info"]
    return [one.line if one.file == str(script) else 0 for one in findings]


@contextlib.contextmanager
def _on_each_optimizer(act: Callable[[torch.nn.Module, torch.optim.Optimizer], None]) -> Iterator[None]:
    """Call a function for each optimizer that is made, and each module around it that has parameters of it."""
    original = torch.optim.Optimizer.__init__

    def made(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        held = {id(each) for group in optimizer.param_groups for each in group["params"]}
        for module in _modules(sys._getframe(1)):
            if any(id(each) in held for each in module.parameters()):
                act(module, optimizer)

    torch.optim.Optimizer.__init__ = made
    try:
        yield
    finally:
        torch.optim.Optimizer.__init__ = original


def _modules(frame: FrameType | None) -> list[torch.nn.Module]:
    """Return the modules in the variables of the running frames, without those inside another one."""
    found: dict[int, torch.nn.Module] = {}
    while frame is not None:
        for value in list(frame.f_locals.values()):
            inside = (
                vars(value).values() if hasattr(value, "__dict__") and not isinstance(value, type) else ()
            )
            for each in (value, *inside):
                if isinstance(each, torch.nn.Module):
                    found[id(each)] = each
        frame = frame.f_back
    nested = {id(inner) for module in found.values() for inner in module.modules() if inner is not module}
    return [module for key, module in found.items() if key not in nested]


def with_torch_audit(script: Path) -> Lines:
    """Let torch-audit watch each module and its optimizer at every step."""
    import torch_audit

    auditors: list[Any] = []

    def watch(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        auditors.append(
            torch_audit.autopatch(
                module, optimizer=optimizer, every_n_steps=1, reporters=[], run_static=True, run_init=True
            )
        )

    with _on_each_optimizer(watch):
        _run(script)
    findings = [one for auditor in auditors for one in auditor.finish(report=False).findings]
    return [
        0
        for one in findings
        if str(one.severity).rpartition(".")[2].upper().startswith(("WARN", "ERR", "FATAL"))
    ]


def with_torcheck(script: Path) -> Lines:
    """Let torcheck raise where a parameter doesn't change, or an output isn't finite."""
    from torcheck.registry import Registry  # torcheck.registry itself is an instance of it

    registry = Registry()

    def watch(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if optimizer not in registry.optimizer_to_spec:
            registry.register(optimizer)
        for name, parameter in module.named_parameters():
            if parameter in registry.tensor_to_optimizer:
                registry.add_tensor(parameter, name, changing=True, check_nan=True, check_inf=True)

    with _on_each_optimizer(watch):
        end = _run(script)
    return [0] if isinstance(end, RuntimeError) and "errors are detected while training" in str(end) else []


if __name__ == "__main__":
    main()
