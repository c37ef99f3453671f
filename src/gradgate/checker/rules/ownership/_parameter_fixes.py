"""Fixes that make tensors and layers parameters of a module, or pass them to an optimizer."""

from __future__ import annotations

import ast
import re

from gradgate.checker.analysis._scopes import imported
from gradgate.checker.analysis._statement import Statement
from gradgate.checker.fixes import Fix, Replace


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
