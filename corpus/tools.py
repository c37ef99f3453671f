"""How each checker is run: an adapter takes scripts and returns what the checker reports for them."""

import contextlib
import importlib
import io
import json
import re
import runpy
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

PATIENCE = 1800  # seconds for a tool that reads the source of all scripts


class Alarm(NamedTuple):
    """A report of a checker. Line 0: it names no line of the script."""

    line: int
    category: str = ""
    is_note: bool = False


class Tool(NamedTuple):
    """A checker: either it watches one script at a time, or it reads a folder of them."""

    module: str
    watch: Callable[[Path], list[Alarm]] | None = None
    read: Callable[[Path], Iterable[tuple[Path, Alarm]]] | None = None

    @property
    def is_installed(self) -> bool:
        return find_spec(self.module) is not None


def run(script: Path) -> BaseException | None:
    """Run a script as python does, quietly; return what ended it."""
    sys.argv[:] = [script.name]
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            runpy.run_path(str(script), run_name="__main__")
    except (Exception, SystemExit) as end:  # noqa: BLE001  (a script may end in any way)
        return end
    return None


def plain(script: Path) -> list[Alarm]:
    """Run the script without a checker: the time to compare with."""
    run(script)
    return []


def gradgate(script: Path) -> list[Alarm]:
    """Watch a script, and judge its log."""
    from gradgate.checker.recording import Watcher
    from gradgate.checker.rules import check

    watcher = Watcher(str(script))
    watcher.start()
    try:
        run(script)
    finally:
        watcher.stop()
    return [
        Alarm(one.line if one.file == str(script) else 0, one.category, one.severity == "info")
        for one in check(watcher.log())
    ]


@contextlib.contextmanager
def _on_each_optimizer(act: Callable[[Any, Any], None]) -> Iterator[None]:
    """Call a function for each optimizer that is made, and each module around it that has parameters of it."""
    import torch

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


def _modules(frame: FrameType | None) -> list[Any]:
    """Return the modules in the variables of the running frames, without those inside another one."""
    import torch

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


def torch_audit(script: Path) -> list[Alarm]:
    """Let torch-audit watch each module and its optimizer at every step."""
    import torch_audit as package

    auditors: list[Any] = []

    def watch(module: Any, optimizer: Any) -> None:
        options = {"every_n_steps": 1, "reporters": [], "run_static": True, "run_init": True}
        auditors.append(package.autopatch(module, optimizer=optimizer, **options))

    with _on_each_optimizer(watch):
        run(script)
    severities = [
        str(one.severity).rpartition(".")[2].upper()
        for auditor in auditors
        for one in auditor.finish(report=False).findings
    ]
    return [Alarm(0, is_note=not severity.startswith(("WARN", "ERR", "FATAL"))) for severity in severities]


def torcheck(script: Path) -> list[Alarm]:
    """Let torcheck raise where a parameter doesn't change, or an output isn't finite."""
    from torcheck.registry import Registry  # torcheck.registry itself is an instance of it

    registry = Registry()

    def watch(module: Any, optimizer: Any) -> None:
        if optimizer not in registry.optimizer_to_spec:
            registry.register(optimizer)
        for name, parameter in module.named_parameters():
            if parameter in registry.tensor_to_optimizer:
                registry.add_tensor(parameter, name, changing=True, check_nan=True, check_inf=True)

    with _on_each_optimizer(watch):
        end = run(script)
    raised = isinstance(end, RuntimeError) and "errors are detected while training" in str(end)
    return [Alarm(0)] if raised else []


def torch_preflight(folder: Path) -> Iterator[tuple[Path, Alarm]]:
    """Let torch-preflight read the scripts of a folder."""
    printed = json.loads(_printed("torch-preflight", "check", "--format", "json", folder))
    for each in printed["diagnostics"]:
        yield Path(each["path"]), Alarm(each["line"], is_note=each["severity"] not in ("warning", "error"))


def torchfix(folder: Path) -> Iterator[tuple[Path, Alarm]]:
    """Let TorchFix read the scripts of a folder. It prints file:line:column: code message."""
    printed = _printed("torchfix", folder)
    for file, line in re.findall(r"^(.+?\.py):(\d+):\d+: TOR", printed, re.MULTILINE):
        yield Path(file), Alarm(int(line))


def _printed(command: str, *arguments: str | Path) -> str:
    words = [str(Path(sys.executable).with_name(command)), *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False).stdout


TOOLS = {
    "gradgate": Tool("gradgate", watch=gradgate),
    "torch-audit": Tool("torch_audit", watch=torch_audit),
    "torcheck": Tool("torcheck", watch=torcheck),
    "torch-preflight": Tool("torch_preflight", read=torch_preflight),
    "torchfix": Tool("torchfix", read=torchfix),
    "plain": Tool("torch", watch=plain),
}


def tool_named(name: str) -> Tool:
    """Return a tool of the table, or the one that ``package.module:function`` watches scripts with."""
    if name in TOOLS:
        return TOOLS[name]
    module, _, function = name.partition(":")
    if not function:
        raise SystemExit(
            f"score: there is no tool {name!r}. Name one of {', '.join(TOOLS)}, or module:function."
        )
    return Tool(module, watch=getattr(importlib.import_module(module), function))


def version(name: str) -> str:
    """Return a tool's name with its version, where it is a package."""
    try:
        return f"{name} {metadata.version(name)}"
    except metadata.PackageNotFoundError:
        return name
