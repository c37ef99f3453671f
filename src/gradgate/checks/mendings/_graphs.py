"""What cuts a graph, holds it, or lets no gradient through."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from gradgate.checks._finding import Finding
from gradgate.checks.mendings._edit import Edit
from gradgate.checks.mendings._spot import VALUES, Spot


def with_its_graph(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Leave out what cuts a value off from its graph, or keep the graph of a gradient."""
    if finding.fix.startswith("Pass create_graph=True"):
        return _with_a_graph_of_its_own(spot)
    if isinstance(spot.statement, ast.With):
        return _without_the_block(spot) if "no_grad" in ast.unparse(spot.statement.items[0]) else []
    if isinstance(spot.statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        lines = [one.lineno for one in spot.statement.decorator_list if "no_grad" in ast.unparse(one)]
        return [Edit(line) for line in lines]
    if finding.message.startswith("A new leaf"):
        return _not_a_leaf(spot)
    expression = re.match(r"`(.+)` is added to the loss", finding.message)
    within = (
        expression[1] if expression is not None and finding.message.count(f"line {finding.line} ") else None
    )
    cuts = [one for one in spot.nodes() if _cuts(one) and (within is None or ast.unparse(one) in within)]
    if within is not None:
        cuts = [one for one in cuts if _in_a_sum(spot, one, within)]
    if len(cuts) != 1 or (finding.message[:1] != "`" and _leaves_torch(spot, cuts[0])):
        return []
    inner = cuts[0].func.value if isinstance(cuts[0], ast.Call) else cuts[0].value  # type: ignore[attr-defined]
    return spot.replaced(cuts[0], spot.operand(inner))


def _cuts(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        function = node.func
        return isinstance(function, ast.Attribute) and function.attr in ("detach", "item") and not node.args
    return isinstance(node, ast.Attribute) and node.attr == "data" and isinstance(node.ctx, ast.Load)


def _in_a_sum(spot: Spot, cut: ast.AST, within: str) -> bool:
    """Say whether a cut stands in the very expression that is added, and not beside it."""
    for node in spot.nodes():
        if isinstance(node, ast.BinOp):
            for side in (node.left, node.right):
                if ast.unparse(side) == within and any(one is cut for one in ast.walk(side)):
                    return True
    return False


def _leaves_torch(spot: Spot, cut: ast.AST) -> bool:
    """Say whether what is cut off goes on as something that has no gradients: an array, a list."""
    arrays = {"numpy", "tolist"}
    return any(isinstance(one, ast.Attribute) and one.attr in arrays for one in spot.nodes())


def _with_a_graph_of_its_own(spot: Spot) -> Sequence[Edit]:
    calls = [one for one in spot.calls("grad") if not any(key.arg == "create_graph" for key in one.keywords)]
    if len(calls) != 1:
        return []
    keeps = [key for key in calls[0].keywords if key.arg == "retain_graph"]
    if keeps:  # kept all the same with a graph of its own
        return spot.replaced(keeps[0], "create_graph=True")
    last = [*calls[0].args, *(key.value for key in calls[0].keywords)][-1:]
    return spot.wrapped(last[0], "", ", create_graph=True") if last else []


def _without_the_block(spot: Spot) -> Sequence[Edit]:
    """Take the line out, and what is within to the left."""
    block = spot.statement
    assert isinstance(block, ast.With)  # noqa: S101
    if len(block.items) > 1 or block.body[0].lineno == block.lineno:
        return []
    less = len(spot.indent(block.body[0].lineno)) - len(spot.indent(block.lineno))
    lines = range(block.body[0].lineno, (block.end_lineno or block.lineno) + 1)
    return [
        *(Edit(line) for line in range(block.lineno, block.body[0].lineno)),
        *(
            Edit(line, (spot.text(line)[less:] if spot.text(line)[:less].isspace() else spot.text(line),))
            for line in lines
        ),
    ]


def _not_a_leaf(spot: Spot) -> Sequence[Edit]:
    for call in spot.calls():
        name = ast.unparse(call.func).rpartition(".")[2]
        if name == "Parameter" and len(call.args) == 1:
            return spot.replaced(call, spot.operand(call.args[0]))
        if name == "tensor" and len(call.args) == 1 and isinstance(call.args[0], ast.Name):
            return spot.replaced(call, f"torch.stack({spot.source(call.args[0])})")
    return []


def away_from_zero(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Keep what a root or logarithm is taken of away from 0."""
    roots = [one for name in ("sqrt", "log") for one in spot.calls(name)]
    if len(roots) != 1 or not re.search(r"\((Sqrt|Log|Mul)\)", finding.message):
        return []
    call = roots[0]
    given = call.args[0] if call.args else getattr(call.func, "value", None)
    if given is None:
        return []
    if isinstance(given, VALUES):
        return spot.wrapped(given, "", ".clamp(min=1e-8)")
    return spot.wrapped(given, "(", ").clamp(min=1e-8)")


def not_rounded(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Divide without rounding to whole numbers."""
    rounding = [
        one for one in spot.nodes() if isinstance(one, ast.BinOp) and isinstance(one.op, ast.FloorDiv)
    ]
    if len(rounding) != 1:
        return []
    left, right = rounding[0].left, rounding[0].right
    # The operator alone is exchanged: parentheses around its sides belong to no node.
    if left.end_lineno != right.lineno:
        return []
    text = spot.text(right.lineno).encode()
    at = text.find(b"//", left.end_col_offset)
    line = (text[:at] + b"/" + text[at + 2 :]).decode()
    return [Edit(right.lineno, (line,))] if 0 <= at < right.col_offset else []


def in_place(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Update a parameter itself, under no_grad; call the step that is only named."""
    one = spot.statement
    if isinstance(one, ast.Expr) and isinstance(one.value, ast.Attribute) and one.value.attr == "step":
        return spot.wrapped(one.value, "", "()")
    if not finding.fix.startswith("Update in place") or not isinstance(one, ast.Assign):
        return []
    value, target = one.value, one.targets[0]
    quiet = any("no_grad" in ast.unparse(node.items[0]) for node in spot.path if isinstance(node, ast.With))
    if not quiet or not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Sub):
        return []
    if ast.unparse(value.left) != ast.unparse(target):
        return []
    return spot.replaced(one, f"{spot.source(target)} -= {spot.source(value.right)}")


def without_gradients(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Run a network under no_grad that only gives values."""
    if not finding.fix.startswith("Run it under torch.no_grad()") or not spot.alone:
        return []
    one = spot.statement
    if not isinstance(one, ast.Assign) or any(isinstance(node, ast.BinOp) for node in spot.nodes()):
        return []
    line = one.lineno
    indent = spot.indent(line)
    return [Edit(line, (f"{indent}with torch.no_grad():", f"{indent}    {spot.text(line).strip()}"))]


def let_go(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Keep the value without its graph; leave retain_graph out."""
    if finding.message.startswith("retain_graph=True"):
        text = spot.text(spot.statement.lineno)
        less = text.replace("(retain_graph=True)", "()")
        return [Edit(spot.statement.lineno, (less,))] if less != text else []
    one = spot.statement
    kept = getattr(one, "value", None)
    if isinstance(one, ast.Expr):
        appended = [call for call in spot.calls("append") if call is kept and len(call.args) == 1]
        kept = appended[0].args[0] if appended else None
    elif isinstance(one, ast.Assign):  # what a call gives may be a tuple
        kept = kept if isinstance(kept, (ast.BinOp, ast.IfExp, ast.Name)) else None
    elif not isinstance(one, ast.AugAssign):
        return []
    if kept is None or isinstance(kept, (ast.Tuple, ast.List, ast.Dict)):
        return []
    return (
        spot.wrapped(kept, "", ".detach()")
        if isinstance(kept, VALUES)
        else spot.wrapped(kept, "(", ").detach()")
    )
