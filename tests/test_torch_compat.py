"""Private names stand in one file, and what is lost with one is said."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gradgate as gg
from gradgate import torch_compat
from gradgate.checks import rules
from gradgate.torch_compat import Private

PACKAGE = Path(gg.__file__).parent
ENTRIES = {name: one for name, one in vars(torch_compat).items() if isinstance(one, Private)}

# Documented, underscore or not: where, says the docstring of torch_compat.
DOCUMENTED = re.compile(r"_saved_\w+|_getframe|_current_frames|_exit|_fields|_replace")


def private_names(tree: ast.Module, own: set[str]) -> Iterator[tuple[int, str]]:
    """Yield the lines and names that begin with an underscore and are nobody's here."""

    def private(name: str) -> bool:
        underscored = name.startswith("_") and not (name.startswith("__") and name.endswith("__"))
        return underscored and name not in own and len(name) > 1 and not DOCUMENTED.fullmatch(name)

    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.Import):
            names = [part for alias in node.names for part in alias.name.split(".")]
        elif isinstance(node, ast.ImportFrom):
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr", "setattr"):
            names = [str(one.value) for one in node.args[1:2] if isinstance(one, ast.Constant)]
        yield from ((node.lineno, name) for name in names if private(name))


def own_names(trees: list[ast.Module], files: list[Path]) -> set[str]:
    """Return the names that are given here: of functions, classes, modules, attributes and fields."""
    own = {file.stem for file in files}
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            own |= {node.attr} if getattr(node.value, "id", "") in ("self", "cls") else set()
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
    return own


def spelled(package: Path) -> list[str]:
    files = [file for file in sorted(package.rglob("*.py")) if file.name != "torch_compat.py"]
    trees = [ast.parse(file.read_text("utf-8")) for file in files]
    own = own_names(trees, files)
    return [
        f"{file.relative_to(package).as_posix()}:{line}: {name}"
        for file, tree in zip(files, trees, strict=True)
        for line, name in sorted(private_names(tree, own))
    ]


def test_no_other_file_spells_a_private_name_of_torch_or_of_python() -> None:
    assert spelled(PACKAGE) == []


def test_a_private_name_would_be_noticed(tmp_path: Path) -> None:
    (tmp_path / "_gate.py").write_text(
        "import torch\n"
        "from torch._subclasses.fake_tensor import FakeTensor\n"
        "from torch.utils.data.dataloader import _BaseDataLoaderIter as Base\n"
        "import torch._dynamo\n"
        "from gradgate._gate import _mine\n"
        "def _mine(node, self):\n"
        "    self._here = node._saved_self\n"
        "    return torch._C.TensorBase, node._sequence_nr(), self._here, _mine\n"
        "getattr(torch.autograd.graph, '_engine_run_backward')\n"
        "node.__class__, node.name, x._replace(a=1)\n"
    )
    (tmp_path / "torch_compat.py").write_text("import torch._C\n")
    assert spelled(tmp_path) == [
        "_gate.py:2: _subclasses",
        "_gate.py:3: _BaseDataLoaderIter",
        "_gate.py:4: _dynamo",
        "_gate.py:8: _C",
        "_gate.py:8: _sequence_nr",
        "_gate.py:9: _engine_run_backward",
    ]


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_nothing_is_lost_with_this_version(entry: Private[..., Any]) -> None:
    assert not entry.lost
    assert re.fullmatch(r"[a-z].*[^.]", entry.cannot)  # follows "gradgate cannot"
    codes = {rule.code for rule in rules()}
    assert set(entry.rules) <= codes | {"every rule"}
