"""The edit that makes a trainer's accumulation exact."""

from __future__ import annotations

import ast

from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import last_name
from gradgate.checker.analysis._statement import Statement, method, owner
from gradgate.checker.analysis._trainers import accumulating_library
from gradgate.checker.fixes import Fix, Insert, Replace
from gradgate.events import Site


def one_line_fix(run: Run, site: Site, at: Statement) -> Fix:
    """Return the edit that makes a trainer exact, with its import; () unless the file shows exactly one trainer.

    Args:
        run: run of the script.
        site: line of the backward calls to correct.
        at: statement that the finding names, in the file to edit.
    """
    library = accumulating_library(run, site)
    imported = "ExactAccumulation" if library == "lightning" else "exact"
    nodes = list(ast.walk(at.module))
    if not library or any(isinstance(node, ast.Name) and node.id == imported for node in nodes):
        return ()
    change: Insert | Replace | None = None
    if library == "transformers":
        if method(at.node) == "train" and owner(at.node).isidentifier():
            change = Insert(f"{owner(at.node)} = exact({owner(at.node)})", before=at.line)
    else:
        calls = [
            node
            for node in nodes
            if isinstance(node, (ast.Assign, ast.Expr))
            and isinstance(node.value, ast.Call)
            and last_name(node.value.func) == ("Trainer" if library == "lightning" else "Accelerator")
        ]
        change = _at_the_constructor(calls[0]) if len(calls) == 1 else None
    if change is None:
        return ()
    line = f"from gradgate.integrations.{library} import {imported}"
    where = change.line if isinstance(change, Replace) else change.before or change.after
    imports = [
        node.lineno
        for node in getattr(at.module, "body", ())
        if isinstance(node, (ast.Import, ast.ImportFrom)) and node.lineno < where
    ]
    return (Insert(line, after=imports[-1]), change) if imports else ()


def _at_the_constructor(made: ast.Assign | ast.Expr) -> Insert | Replace | None:
    """Return the edit that makes ``Accelerator()`` or Lightning's ``Trainer(...)`` exact at its construction."""
    call = made.value
    assert isinstance(call, ast.Call)  # noqa: S101
    if last_name(call.func) == "Accelerator":
        targets = made.targets if isinstance(made, ast.Assign) else ()
        name = ast.unparse(targets[0]) if len(targets) == 1 else ""
        return Insert(f"exact({name})", after=made.lineno) if name else None
    if any(keyword.arg in (None, "callbacks") for keyword in call.keywords):
        return None  # there may be other trainers
    old = ast.unparse(call)
    listed = "callbacks=[ExactAccumulation()]"
    return Replace(made.lineno, old, f"{old[:-1]}, {listed})" if old[-2] != "(" else f"{old[:-1]}{listed})")
