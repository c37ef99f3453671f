"""The scripts as data: what the index says of each, the lines that it marks, and a copy without hints."""

import ast
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
INDEX = FOLDER / "index.jsonl"
MARK = re.compile(r"\s*# expect(?:: (.+))?$")


@dataclass(frozen=True)
class Script:
    """One row of the index. README.md explains the fields."""

    script: str
    made: str
    category: str = ""
    topic: str = ""
    code: str = ""
    source: str = ""
    twin: str = ""
    regression: bool = False
    first_contact: str = ""
    gradgate: dict[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.script}.py"

    @property
    def set(self) -> str:
        """The set that it belongs to: ``own``, or the name of a set in ``unseen``."""
        parts = self.script.split("/")
        return parts[1] if parts[0] == "unseen" else "own"

    @property
    def is_wrong(self) -> bool:
        return "wrong" in self.script.split("/")

    @property
    def kind(self) -> str:
        return self.category or self.topic

    @property
    def marked_lines(self) -> dict[int, str]:
        """The lines of the statements that the script marks, each with the category behind the mark."""
        return marked_lines(self.path.read_text("utf-8"))

    def without_hints(self) -> str:
        """Return the text with the same lines, but without the marks and the docstring."""
        text = self.path.read_text("utf-8")
        lines = [MARK.sub("", line) for line in text.splitlines()]
        tree = ast.parse(text)
        if ast.get_docstring(tree) is not None:
            end = tree.body[0].end_lineno or 0
            lines[tree.body[0].lineno - 1 : end] = [""] * (end - tree.body[0].lineno + 1)
        return "\n".join(lines) + "\n"


def marked_lines(text: str) -> dict[int, str]:
    """Return the lines that a text marks, and those of the same simple statement, each with its category."""
    marks = {n: found[1] or "" for n, line in enumerate(text.splitlines(), 1) if (found := MARK.search(line))}
    lines = dict(marks)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            statement = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            for line in marks.keys() & set(statement):
                lines |= dict.fromkeys(statement, marks[line])
    return lines


def scripts(chosen: str = "all") -> list[Script]:
    """Return the scripts of a set: ``own``, a name in ``unseen``, ``regression``, or ``all``."""
    rows = [Script(**json.loads(row)) for row in INDEX.read_text("utf-8").splitlines()]
    return [row for row in rows if chosen in ("all", row.set) or (chosen == "regression" and row.regression)]
