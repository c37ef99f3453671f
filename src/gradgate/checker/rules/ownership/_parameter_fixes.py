"""Fixes that make tensors and layers parameters of a module, or pass them to an optimizer."""

from __future__ import annotations

import ast
import re

from gradgate.checker.analysis._scopes import called, imported, names_read
from gradgate.checker.analysis._source import inside
from gradgate.checker.analysis._statement import Statement, operand
from gradgate.checker.fixes import Fix, Replace


def computed_first(at: Statement) -> Fix:
    """Write ``nn.Parameter(x * 0.02)`` for ``nn.Parameter(x) * 0.02``."""
    calls = at.calls("Parameter")
    if len(calls) != 1 or at.value is None or len(calls[0].args) != 1 or calls[0].keywords:
        return ()
    old, call = ast.unparse(at.value), ast.unparse(calls[0])
    inner = old.replace(call, operand(calls[0].args[0]))
    return (Replace(at.line, old, f"{ast.unparse(calls[0].func)}({inner})"),)


def made_parameter(at: Statement) -> Fix:
    """Write ``nn.Parameter(torch.randn(3))`` for ``torch.randn(3, requires_grad=True)``."""
    call = at.value
    if not isinstance(at.node, ast.Assign) or not isinstance(call, ast.Call):
        return ()
    kept = [keyword for keyword in call.keywords if keyword.arg != "requires_grad"]
    if len(kept) == len(call.keywords):
        return ()
    nn = "nn" if at.knows("nn") or "nn" in imported(at.file) else "torch.nn"
    new = ast.Call(call.func, call.args, kept)
    return (Replace(at.line, ast.unparse(call), f"{nn}.Parameter({ast.unparse(new)})"),)


def added(at: Statement, names: list[str]) -> Fix:
    """Add a module's parameters, or a bare parameter, to the optimizer's argument."""
    call = at.value
    roots = {name.partition(".")[0] for name in names}
    if not isinstance(call, ast.Call) or not call.args or len(roots) > 1:
        return ()
    (root,), given, whole = roots, call.args[0], any("." in name for name in names)
    mentioned = root in names_read(given)
    if not root.isidentifier() or mentioned or not at.knows(root) or (whole and not _is_module(at, root)):
        return ()
    more, text = f"*{root}.parameters()" if whole else root, ast.unparse(given)
    # Another expression may yield groups, which can't be mixed with parameters in one list.
    items = given.elts if isinstance(given, ast.List) else [given]
    yields = [item.value if isinstance(item, ast.Starred) else item for item in items]
    if items and all(isinstance(item, ast.Dict) for item in items):
        more = f'{{"params": {more[1:] if whole else f"[{root}]"}}}'
    elif not items or not all(map(_gives_parameters, yields)):
        return ()
    new = f"{text[:-1]}, {more}]" if isinstance(given, ast.List) else f"[*{text}, {more}]"
    return (Replace(at.line, text, new),)


def _gives_parameters(node: ast.AST) -> bool:
    """Return whether an expression certainly yields parameters, not parameter groups."""
    if isinstance(node, ast.BinOp):
        return _gives_parameters(node.left) and _gives_parameters(node.right)
    name = called(node) if isinstance(node, ast.Call) else ""
    given = node.args[name == "filter" :] if isinstance(node, ast.Call) else []
    return name == "parameters" or (
        name in ("filter", "chain", "list") and bool(given) and all(map(_gives_parameters, given))
    )


def _is_module(at: Statement, name: str) -> bool:
    """Return whether the file calls a variable or a module method of it, such as ``train()``."""
    uses = {f"{name}.{method}" for method in ("parameters", "zero_grad", "train", "eval")} | {name}
    return any(ast.unparse(call.func) in uses for call in inside(ast.Call, at.module))


def in_module_list(at: Statement) -> Fix:
    """Turn a plain list of layers into an ``nn.ModuleList``, if the list holds nothing else."""
    value = at.value
    if not isinstance(at.node, ast.Assign) or not isinstance(value, (ast.List, ast.ListComp)):
        return ()
    nodes, name = list(ast.walk(at.module)), ast.unparse(at.node.targets[0])
    own = {
        node.name
        for node in nodes
        if isinstance(node, ast.ClassDef) and any("Module" in ast.unparse(base) for base in node.bases)
    }
    for item in value.elts if isinstance(value, ast.List) else [value.elt]:
        made = ast.unparse(item.func) if isinstance(item, ast.Call) else ""
        if made not in own and not re.fullmatch(r"(torch\.)?nn\.(?!Parameter)[A-Z]\w+", made):
            return ()
    if any(
        isinstance(node, ast.BinOp) and name in map(ast.unparse, (node.left, node.right)) for node in nodes
    ):
        return ()  # a ModuleList doesn't support ``+``
    nn = "nn" if any(isinstance(node, ast.Name) and node.id == "nn" for node in nodes) else "torch.nn"
    text = ast.unparse(value)
    return (Replace(at.line, text, f"{nn}.ModuleList({text})"),)
