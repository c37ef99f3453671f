"""Finds the lines that would step an optimizer but didn't run."""

from __future__ import annotations

import ast
import re
from collections.abc import Container

from gradgate.checker.analysis._source import inside, tree_of


def calls_step(file: str, name: str, ran: Container[tuple[str, int]]) -> bool:
    """Return whether a line that stepped no other optimizer calls ``step`` on this optimizer or its wrapper."""
    steps = [
        ast.unparse(node.value)
        for node in inside(ast.Attribute, tree_of(file))
        if node.attr == "step" and (file, node.lineno) not in ran
    ]
    return any(name in of or re.search(r"opt|scaler|accelerator|engine", of, re.IGNORECASE) for of in steps)
