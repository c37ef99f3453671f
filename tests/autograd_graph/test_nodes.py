"""The names of autograd's nodes stand in one table."""

import ast
import re
from collections import Counter
from pathlib import Path

import gradgate
from gradgate.autograd_graph import ops

PACKAGE = Path(gradgate.__file__).parent
NODE = re.compile(r"[A-Za-z0-9]+Backward\d?")

# Not read as operations: the one of fully_shard is known to `ranks`, which reads no graph.
ELSEWHERE = {"ranks/_fsdp.py": {"RegisterPostBackward"}}


def names_in(text: str) -> set[str]:
    """Return the strings of a file that are names of nodes."""
    strings = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
    return {value for value in strings if isinstance(value, str) and NODE.fullmatch(value)}


def test_no_file_but_the_table_holds_the_name_of_a_node() -> None:
    files = {file.relative_to(PACKAGE).as_posix(): file for file in PACKAGE.rglob("*.py")}
    table = files.pop("autograd_graph/_nodes.py")
    names = {name: names_in(file.read_text("utf-8")) for name, file in files.items()}
    assert {name: inside for name, inside in names.items() if inside} == ELSEWHERE
    assert names_in(table.read_text("utf-8"))


def test_every_entry_of_the_table_is_used() -> None:
    table = Counter(re.findall(r"\w+", (PACKAGE / "autograd_graph" / "_nodes.py").read_text("utf-8")))
    used = {
        name
        for file in PACKAGE.rglob("*.py")
        for name in re.findall(r"\bops\.(\w+)", file.read_text("utf-8"))
    }
    entries = {name for name in vars(ops) if name.isupper() and not name.startswith("_")}
    assert {name for name in entries - used if table[name] < 2} == set()
