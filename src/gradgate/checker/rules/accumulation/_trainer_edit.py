"""The edit that makes a trainer's accumulation exact."""

from __future__ import annotations

import ast

from gradgate.checker.analysis._queries import find
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import called
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
    if not library or any(name.id == imported for name in find(ast.Name, at.module)):
        return ()
    made: list[ast.Assign | ast.Expr] = [*find(ast.Assign, at.module), *find(ast.Expr, at.module)]
    name = "Trainer" if library == "lightning" else "Accelerator"
    constructed = [node for node in made if method(node) == name]
    change: Insert | Replace | None = None
    if library == "transformers":
        if method(at.node) == "train" and owner(at.node).isidentifier():
            change = Insert(f"{owner(at.node)} = exact({owner(at.node)})", before=at.line)
    elif len(constructed) == 1:
        change = _at_the_constructor(constructed[0])
    if change is None:
        return ()
    where = change.line if isinstance(change, Replace) else change.before or change.after
    imports = [
        node.lineno
        for node in getattr(at.module, "body", ())
        if isinstance(node, (ast.Import, ast.ImportFrom)) and node.lineno < where
    ]
    line = f"from gradgate.integrations.{library} import {imported}"
    return (Insert(line, after=imports[-1]), change) if imports else ()


def _at_the_constructor(made: ast.Assign | ast.Expr) -> Insert | Replace | None:
    """Return the edit that makes ``Accelerator()`` or Lightning's ``Trainer(...)`` exact at its construction."""
    match made:
        case ast.Assign([target], ast.Call() as call) if called(call) == "Accelerator":
            return Insert(f"exact({ast.unparse(target)})", after=made.lineno)
        case ast.Assign(_, ast.Call() as call) | ast.Expr(ast.Call() as call) if called(call) == "Trainer":
            if any(keyword.arg in (None, "callbacks") for keyword in call.keywords):
                return None  # there may be other trainers
            old = ast.unparse(call)
            comma = ", " if old[-2] != "(" else ""
            return Replace(made.lineno, old, f"{old[:-1]}{comma}callbacks=[ExactAccumulation()])")
    return None
