"""Tests reach gradgate through public names and the exports of its packages.

A private part may have a law of its own, such as that no split is cheaper. The import says which: a comment in the
line above it, ``# private: <the law>``, which also holds for private imports in the lines directly below.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
PRIVATE = re.compile(r"gradgate(\.\w+)*\._[a-z]\w*(\.\w+)*")  # also as text, for what monkeypatch replaces
REASON = re.compile(r"\s*# private: \w")


def names_in(node: ast.AST) -> list[str]:
    """Return the dotted names that an import or a text names."""
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    return []


def without_a_reason(file: Path) -> Iterator[tuple[int, str]]:
    """Yield line and name of each private part that a file imports or replaces and gives no law for."""
    lines = file.read_text("utf-8").splitlines()
    found = [
        (node, name)
        for node in ast.walk(ast.parse("\n".join(lines)))
        for name in names_in(node)
        if PRIVATE.fullmatch(name)
    ]
    explained_until: set[int] = set()
    for node, name in sorted(found, key=lambda each: each[0].lineno):  # type: ignore[attr-defined]
        line, end = node.lineno, node.end_lineno  # type: ignore[attr-defined]
        if REASON.match(lines[line - 2]) or explained_until & {line - 1, line, end}:
            explained_until.add(end)
        else:
            yield line, name


def unexplained(folder: Path) -> list[str]:
    """Return each private part that the tests below a folder use without a reason."""
    return [
        f"{file.relative_to(folder).as_posix()}:{line}: {name}"
        for file in sorted(folder.rglob("*.py"))
        for line, name in without_a_reason(file)
    ]


def test_what_tests_import_is_public_or_has_a_law_of_its_own() -> None:
    assert unexplained(TESTS) == []


def test_a_private_import_without_a_reason_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "test_right.py").write_text(
        "import gradgate\n"
        "from gradgate.gates import flow\n"
        "# private: what has a law\n"
        "from gradgate.gates._flow import Flow, flow\n"
        "from gradgate.gates import (\n  _reach,\n)\n"
        "from gradgate.gates import _frozen\n"
        "def test_it(monkeypatch):\n"
        "    # private: a bug\n"
        "    monkeypatch.delattr('gradgate.gates._flow.flow')\n"
        "    text = 'import gradgate.gates._flow'\n"
        "    assert gradgate.__version__\n",
        "utf-8",
    )
    (tmp_path / "test_wrong.py").write_text(
        "from gradgate.gates._flow import flow\n"
        "# private:\n"
        "from gradgate import gates, _gate\n"
        "# private: this is a law of the next line\n"
        "from gradgate.gates import _reach\n"
        "from gradgate.errors import FlowError\n"
        "import gradgate.gates._frozen as frozen\n"
        "def test_it(monkeypatch):\n"
        "    from gradgate.gates import _scaled\n"
        "    monkeypatch.setattr('gradgate.gates._flow.MOST', 3)\n"
        "    monkeypatch.setattr(\n      'gradgate.gates._flow', 3)\n",
        "utf-8",
    )
    assert unexplained(tmp_path) == [
        "test_wrong.py:1: gradgate.gates._flow.flow",
        "test_wrong.py:3: gradgate._gate",
        "test_wrong.py:7: gradgate.gates._frozen",
        "test_wrong.py:9: gradgate.gates._scaled",
        "test_wrong.py:10: gradgate.gates._flow.MOST",
        "test_wrong.py:12: gradgate.gates._flow",
    ]
