"""Which package may import which, and what ``import gradgate`` brings in."""

import ast
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

import gradgate

PACKAGE = Path(gradgate.__file__).parent

# A package is a file or a folder directly below gradgate/ or gradgate/checker/. It may import itself, the standard
# library and what stands here; those marked "(lazily)" only inside a function, so that nobody pays for them who
# does not use them. "*" is every package but cli.
MAY_IMPORT = {
    "__init__": {"torch", "*"},
    "errors": set(),
    "torch_compat": {"errors", "torch (lazily)"},
    "events": set(),
    "tally": {"errors", "torch"},
    "pytree": {"torch"},
    "batch_layout": {"errors", "pytree", "torch"},
    "backward_weight": {"torch", "torch_compat"},
    "byte_sizes": {"errors"},
    "options": {"errors"},
    "call_sites": {"events", "torch"},
    "user_warnings": {"call_sites (lazily)"},
    "planning": {
        "autograd_graph",
        "byte_sizes",
        "errors",
        "forward_state",
        "options",
        "batch_layout",
        "pytree",
        "torch",
        "torch_compat",
        "user_warnings",
        "events (lazily)",
    },
    "autograd_graph": {"torch", "torch_compat"},
    "ownership": {"torch"},
    "gates": {
        *(
            "autograd_graph",
            "backward_weight",
            "call_sites",
            "errors",
            "events",
            "ownership",
            "pytree",
            "torch",
            "torch_compat",
        ),
    },
    "losses": {"errors", "options", "torch"},
    "ranks": {"errors", "events", "options", "pytree", "tally", "torch", "torch_compat"},
    "forward_state": {"errors", "torch", "torch_compat"},
    "signals": {"torch_compat"},
    "batch_size": {"errors", "options", "torch", "torch_compat"},
    "coupled": {"errors", "forward_state", "pytree", "ranks", "torch", "torch_compat"},
    "accumulation": {
        *(
            "autograd_graph",
            "backward_weight",
            "errors",
            "events",
            "batch_layout",
            "batch_size",
            "byte_sizes",
            "coupled",
            "forward_state",
            "options",
            "ownership",
            "ranks",
            "signals",
            "tally",
            "user_warnings",
        ),
        *("torch", "torch_compat"),
    },
    "testing": {"errors", "forward_state", "tally", "planning", "accumulation", "torch", "torch_compat"},
    "checker": {"checker.recording", "checker.reports", "checker.rules", "errors", "events"},
    "checker.recording": {"autograd_graph", "errors", "events", "call_sites", "torch", "torch_compat"},
    "checker.analysis": {"checker.excuses", "events"},
    "checker.excuses": {"checker.analysis", "events"},
    "checker.fixes": {"checker.analysis", "checker.rules", "events"},
    "checker.rules": {"checker.analysis", "checker.excuses", "checker.fixes", "errors", "events"},
    "checker.reports": {
        *("byte_sizes", "errors", "events"),
        *("checker.analysis", "checker.fixes", "checker.rules"),
        *("rich (lazily)", "plotly (lazily)", "jinja2 (lazily)", "pygments (lazily)"),
    },
    "checker.running": {
        *("errors", "events", "torch_compat", "checker.recording"),
        *("IPython (lazily)", "nbformat (lazily)", "traitlets (lazily)"),
    },
    "integrations": {
        *(
            "accumulation",
            "autograd_graph",
            "checker",
            "checker.reports",
            "errors",
            "events",
            "ranks",
            "tally",
        ),
        *("torch", "torch_compat"),
        # Each in the modules for it, see below.
        *("accelerate", "lightning", "pytest", "pytorch_lightning", "transformers"),
    },
    "cli": {"*", "gradgate", "rich", "tomli", "torch (lazily)", "typer"},
    "__main__": {"cli"},
}


def package_of(parts: Sequence[str]) -> str:
    """Return the package of a name below gradgate: "checker.rules" for ("checker", "rules", "_rule")."""
    inner = ".".join(parts[:2])
    return inner if inner in MAY_IMPORT else parts[0]


def imported(tree: ast.Module, package: list[str]) -> Iterator[tuple[int, str, bool]]:
    """Yield line, name and laziness of each import in a file that lies in ``package`` (["gradgate", package]).

    The name is a package's for what lies in gradgate ("gradgate" for the package itself), otherwise that of the
    top-level module.
    """
    lazy = {
        id(inner)
        for outer in ast.walk(tree)
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(outer)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            paths = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) + 1 - node.level] if node.level else []
            start = start + (node.module.split(".") if node.module else [])
            paths = [[*start, alias.name] for alias in node.names]
        else:
            continue
        for path in paths:
            if path[0] == "gradgate":
                name = package_of(path[1:]) if len(path) > 1 and path[1] in MAY_IMPORT else "gradgate"
            else:
                name = path[0]
            yield node.lineno, name, id(node) in lazy


def violations(package: Path) -> list[str]:
    """Return what breaks the table below a folder that is laid out as gradgate is, one line for each."""
    found = []
    for file in sorted(package.rglob("*.py")):
        inside = file.relative_to(package)
        home = package_of(inside.with_suffix("").parts)
        if home not in MAY_IMPORT:
            found.append(f"{inside.as_posix()}: there is no package '{home}' in the table: add its row")
            continue
        allowed = MAY_IMPORT[home] | {home} | sys.stdlib_module_names
        if "*" in allowed:
            allowed |= MAY_IMPORT.keys() - {"__init__", "__main__", "cli"}
        for line, name, lazy in imported(
            ast.parse(file.read_text("utf-8")), ["gradgate", *inside.parts[:-1]]
        ):
            if name not in allowed and not (lazy and f"{name} (lazily)" in allowed):
                how = "lazily imports" if lazy else "imports"
                found.append(f"{inside.as_posix()}:{line}: {home} {how} {name}")
    return found


def test_no_package_imports_what_the_table_does_not_allow() -> None:
    assert violations(PACKAGE) == []


def test_a_trainer_is_imported_by_the_module_for_it_alone() -> None:
    trainers = {"accelerate", "lightning", "pytorch_lightning", "transformers"}
    found = {
        (file.stem, name)
        for file in sorted((PACKAGE / "integrations").glob("*.py"))
        for _, name, _ in imported(ast.parse(file.read_text("utf-8")), ["gradgate", "integrations"])
        if name in trainers
    }
    assert found == {
        ("accelerate", "accelerate"),
        *(("lightning", "lightning"), ("lightning", "pytorch_lightning")),
        ("transformers", "transformers"),
    }


def test_the_import_table_rejects_what_it_forbids(tmp_path: Path) -> None:
    for name, text in {
        "__init__.py": "from gradgate.tally import Tally\nimport gradgate.cli\n",
        "errors.py": "import math\nimport torch\n",
        "tally.py": "from .errors import CountError\nfrom . import accumulation\n",
        "kitchen.py": "",
        "gates/__init__.py": "from gradgate.gates._gate import gate\nfrom gradgate.checker import recording\n",
        "gates/_gate.py": "import gradgate\nfrom .. import accumulation, events\nfrom . import _other\n",
        "planning/_plan.py": "from .. import events\ndef emit():\n  from .. import events\n  import rich\n",
        "accumulation/_update.py": "if True:\n  from ..planning import peak\nimport torch.nn.functional as F\n",
        "testing/_exact.py": "from gradgate.accumulation import Accumulator\nfrom gradgate import Tally\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")

    assert violations(tmp_path) == [
        "__init__.py:2: __init__ imports cli",
        "accumulation/_update.py:2: accumulation imports planning",
        "errors.py:2: errors imports torch",
        "gates/__init__.py:2: gates imports checker.recording",
        "gates/_gate.py:1: gates imports gradgate",
        "gates/_gate.py:2: gates imports accumulation",
        "kitchen.py: there is no package 'kitchen' in the table: add its row",
        "planning/_plan.py:1: planning imports events",
        "planning/_plan.py:4: planning lazily imports rich",
        "tally.py:2: tally imports accumulation",
        "testing/_exact.py:2: testing imports gradgate",
    ]


def files_imported(tree: ast.Module, package: list[str], root: Path) -> Iterator[str]:
    """Yield the files below ``root`` that the imports in a file name, those for the type checker included."""

    def file_of(path: list[str]) -> str | None:
        inside = Path(*path[1:])
        for name in (inside.with_suffix(".py") if path[1:] else Path("__init__.py"), inside / "__init__.py"):
            if (root / name).is_file():
                return name.as_posix()
        return None

    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [
                file_of(alias.name.split(".")) for alias in node.names if alias.name.startswith("gradgate")
            ]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) + 1 - node.level] if node.level else []
            start = start + (node.module.split(".") if node.module else [])
            if start[0] != "gradgate":
                continue
            found = [file_of([*start, alias.name]) or file_of(start) for alias in node.names]
        else:
            continue
        yield from (name for name in found if name is not None)


def circles(root: Path) -> list[list[str]]:
    """Return the groups of files below ``root`` that import one another, directly or through others, sorted."""
    imports = {
        file.relative_to(root).as_posix(): set(
            files_imported(
                ast.parse(file.read_text("utf-8")), ["gradgate", *file.relative_to(root).parts[:-1]], root
            )
        )
        for file in root.rglob("*.py")
    }
    reached = {file: _reached_from(file, imports) for file in imports}
    groups = {tuple(sorted(b for b in reached[a] if a in reached[b])) for a in imports if a in reached[a]}
    return [list(group) for group in sorted(groups)]


def _reached_from(file: str, imports: Mapping[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    left = list(imports[file])
    while left:
        name = left.pop()
        if name not in seen:
            seen.add(name)
            left += imports[name]
    return seen


def test_no_two_files_import_each_other() -> None:
    assert circles(PACKAGE) == []


def test_a_circle_of_imports_is_noticed(tmp_path: Path) -> None:
    for name, text in {
        "__init__.py": "from gradgate.gates import gate\n",
        "errors.py": "import math\n",
        "tally.py": "from gradgate.errors import CountError\nfrom . import pytree\n",
        "pytree.py": "def f():\n  import gradgate.tally\n",
        "gates/__init__.py": "from gradgate.gates._gate import gate\n",
        "gates/_gate.py": "from ._rows import rows\nfrom gradgate.gates._flow import flow\n",
        "gates/_rows.py": "from . import _flow\nfrom ..errors import ShapeError\n",
        "gates/_flow.py": "if TYPE_CHECKING:\n  from gradgate.gates._gate import Gate\n",
        "ranks/__init__.py": "from gradgate.ranks._plain import Plain\n",
        "ranks/_plain.py": "from gradgate.ranks import Ranks\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")

    assert circles(tmp_path) == [
        ["gates/_flow.py", "gates/_gate.py", "gates/_rows.py"],
        ["pytree.py", "tally.py"],
        ["ranks/__init__.py", "ranks/_plain.py"],
    ]


def classes_of_one_name(root: Path) -> dict[str, list[str]]:
    """Return the names that more than one class below ``root`` has, private and inner ones included."""
    homes: dict[str, list[str]] = defaultdict(list)
    for file in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(file.relative_to(root).as_posix())
    return {name: files for name, files in sorted(homes.items()) if len(files) > 1}


def test_no_two_classes_share_a_name() -> None:
    assert classes_of_one_name(PACKAGE) == {}


def test_a_shared_name_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("class Step: ...\nclass _Bar: ...\n", "utf-8")
    (tmp_path / "b.py").write_text("def f():\n  class _Bar: ...\nclass Other: ...\n", "utf-8")
    assert classes_of_one_name(tmp_path) == {"_Bar": ["a.py", "b.py"]}


@cache
def brought_in_by(statement: str) -> set[str]:
    """Run a statement in a new process and return the top-level modules that are loaded after it."""
    program = f"{statement}; import sys; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def beyond_torch_and_the_standard_library(statement: str) -> set[str]:
    found = brought_in_by(statement) - brought_in_by("import torch") - sys.stdlib_module_names
    return {
        name for name in found if not name.startswith("_sysconfigdata")
    }  # the standard library's, for sysconfig


def test_import_gradgate_brings_in_torch_and_the_standard_library_only() -> None:
    # Its names are imported when they are asked for; the star asks for all of them. torch.utils.flop_counter brings
    # in triton where torch is built for CUDA.
    assert beyond_torch_and_the_standard_library("from gradgate import *") - {"triton"} == {"gradgate"}


def test_what_watches_brings_in_no_more() -> None:
    names = ("recording", "rules", "fixes", "reports", "running")
    packages = "import " + ", ".join(f"gradgate.checker.{name}" for name in names)
    brought = beyond_torch_and_the_standard_library(packages)
    # The standard library's sysconfig keeps its data in a module whose name depends on the platform.
    assert {name for name in brought if not name.startswith("_sysconfigdata")} == {"gradgate"}


def test_private_names_of_torch_are_looked_for_when_they_are_used() -> None:
    # What prepares to watch an interpreter that a script starts may find that it never imports torch.
    assert "torch" not in brought_in_by("import gradgate.torch_compat, gradgate.checker.running")


def test_a_further_import_would_be_noticed() -> None:
    # Not tqdm: torch itself imports that where it is installed.
    assert "rich" in beyond_torch_and_the_standard_library("import gradgate, rich")


@pytest.mark.skipif(os.name == "nt", reason="making a symbolic link takes a privilege there")
def test_a_package_that_a_symbolic_link_leads_to_knows_its_own_frames(tmp_path: Path) -> None:
    # A link to the environment's folder, or a temporary folder of macOS: code objects name the link.
    (tmp_path / "linked").symlink_to(Path(gradgate.__file__).parents[1])
    code = "import gradgate.call_sites as c; print(c.__file__, c.kind_of(c.__file__), sep='\\n')"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "linked")},
        capture_output=True,
        text=True,
        check=True,
    )
    file, kind = ran.stdout.split()
    assert file.startswith(str(tmp_path / "linked"))
    assert kind == "ours"
