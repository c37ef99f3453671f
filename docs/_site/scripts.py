"""A Python file as a page: its name, what its docstring says, and its code."""

import ast
from pathlib import Path
from typing import Any

from sphinx.parsers import RSTParser


def indented(text: str) -> str:
    """Indent each line that holds something."""
    return "\n".join(f"    {line}".rstrip() for line in text.splitlines())


def as_page(name: str, code: str) -> str:
    """Return a script as reStructuredText, which is what docstrings are written in."""
    tree = ast.parse(code)
    said = ast.get_docstring(tree) or ""
    begins = tree.body[0].end_lineno if said else 0
    # A command stands indented and after no colons: it is one all the same.
    paragraphs = [f"::\n\n{part}" if part.startswith("    ") else part for part in said.split("\n\n")]
    rest = "\n".join(code.splitlines()[begins:]).strip("\n")
    title = f"{name}\n{'=' * len(name)}"
    return "\n\n".join([title, *paragraphs, ".. code-block:: python", indented(rest)])


class ScriptParser(RSTParser):
    """Reads files that end in .py."""

    supported = ("script",)

    def parse(self, inputstring: str, document: Any) -> None:
        """Parse the page that is made of the script."""
        super().parse(as_page(Path(document["source"]).name, str(inputstring)), document)


def setup(app: Any) -> dict[str, Any]:
    """Tell Sphinx."""
    app.add_source_parser(ScriptParser)
    return {"parallel_read_safe": True}
