"""What cuts a graph, holds it, or lets no gradient through."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from gradgate.checker.fixes._edit import Edit
from gradgate.checker.fixes._spot import VALUES, Spot, of_its_own, owner
from gradgate.checker.rules._finding import Finding

_PASSES = ("forward", "__call__", "training_step", "step", "loss")


def with_its_graph(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Leave out what cuts a value off from its graph, or keep the graph of a gradient."""
    if finding.advice.startswith("Pass create_graph=True"):
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
    said = re.match(r"\.?(\w+)(?:\(\))? cuts", finding.message)
    if said is not None:
        cuts = [one for one in cuts if getattr(getattr(one, "func", one), "attr", "") == said[1]]
    if len(cuts) != 1 or _leaves_torch(spot, cuts[0], all_of_it=within is None):
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


def _leaves_torch(spot: Spot, cut: ast.AST, *, all_of_it: bool) -> bool:
    """Say whether something else cuts as well: what is cut goes on as an array, a number, an index."""
    others = {"numpy", "tolist", "argmax", "argmin", "long", "int", "round", "float"}
    beside = spot.nodes() if all_of_it else spot.inside(cut)
    if any(isinstance(one, ast.Attribute) and one.attr in others for one in beside):
        return True
    calls = [ast.unparse(one.func) for one in spot.inside(cut) if isinstance(one, ast.Call)]
    return any(re.match(r"(math|np|numpy)\.|(float|int|round|print)$", name) for name in calls)


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
    # One value alone: of several some may be meant to be without a graph.
    if len(block.items) > 1 or len(block.body) > 1 or block.body[0].lineno == block.lineno:
        return []
    if not isinstance(block.body[0], ast.Assign):
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
        target = spot.statement.targets[0] if isinstance(spot.statement, ast.Assign) else None
        if name == "Parameter" and len(call.args) == 1 and not isinstance(target, ast.Attribute):
            return spot.replaced(call, spot.operand(call.args[0]))
        if name == "tensor" and len(call.args) == 1 and isinstance(call.args[0], ast.Name):
            made = spot.made_of(call.args[0].id)
            lists = [
                one
                for one in made
                if isinstance(one, (ast.List, ast.ListComp)) and ".item()" not in ast.unparse(one)
            ]
            whole = len(made) == len(lists) == 1 and isinstance(lists[0], ast.ListComp)
            return spot.replaced(call, f"torch.stack({spot.source(call.args[0])})") if whole else []
    return []


def away_from_zero(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Keep what a root or logarithm is taken of away from 0."""
    roots = [one for name in ("sqrt", "log") for one in spot.calls(name)]
    if len(roots) != 1 or not re.search(r"\((Sqrt|Log|Mul)\)", finding.message):
        return []
    call = roots[0]
    given = call.args[0] if call.args else getattr(call.func, "value", None)
    of = ast.unparse(call.func).rpartition(".")[0]
    if (
        given is None
        or (call.args and of != "torch")
        or (not call.args and of in ("math", "np", "numpy", "self"))
    ):
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
    for holder in spot.inside(rounding[0]):
        if isinstance(holder, ast.Lambda):
            break
        # Where whole numbers are wanted: an index, a size.
        whole = isinstance(holder, ast.Call) and ast.unparse(holder.func) not in ("min", "max", "float")
        if whole or isinstance(holder, ast.Subscript):
            return []
    return spot.operator(rounding[0].left, rounding[0].right, "//", "/")


def without_gradients(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Run a network under no_grad that only gives values."""
    if not finding.advice.startswith("Run it under torch.no_grad()") or not spot.alone:
        return []
    one = spot.statement
    if not isinstance(one, ast.Assign) or len(one.targets) > 1 or not isinstance(one.targets[0], ast.Name):
        return []
    # The network's own call, and what is taken of its output; nothing else is under no_grad then.
    value: ast.AST = one.value
    while isinstance(value, (ast.Attribute, ast.Subscript)) or (
        isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and _calls_in(value.func)
    ):
        value = value.func if isinstance(value, ast.Call) else value.value
    named = re.search(r" for (.+?), which ", finding.message)
    if not isinstance(value, ast.Call) or named is None or any(_calls_in(given) for given in value.args):
        return []
    if ast.unparse(value.func).rpartition(".")[2] not in re.split(r"[., ]+", named[1]):
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
        known = kept is not None and _is_a_loss(spot, kept)
    elif isinstance(one, ast.AugAssign):
        known = isinstance(kept, ast.BinOp) or _is_a_loss(spot, kept)
    elif isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Attribute):
        # In a pass, what is carried on is part of this step's loss, too.
        known = isinstance(kept, (ast.BinOp, ast.IfExp)) and getattr(spot.function, "name", "") not in _PASSES
    else:
        known = False
    if (
        kept is None
        or not known
        or any(isinstance(node, (ast.Tuple, ast.List, ast.Dict)) for node in ast.walk(kept))
    ):
        return []
    later = [line for line in spot.statements_around("backward") if line.lineno > one.lineno]
    if later and ast.unparse(kept) not in map(owner, later):
        return []  # it may be a part of the loss
    return (
        spot.wrapped(kept, "", ".detach()")
        if isinstance(kept, VALUES)
        else spot.wrapped(kept, "(", ").detach()")
    )


def _is_a_loss(spot: Spot, kept: ast.AST | None) -> bool:
    """Say whether a value is a loss, or what a loss is made of: a tensor for sure."""
    if not isinstance(kept, (ast.Name, ast.Attribute)):
        return False
    name = ast.unparse(kept)
    if re.search("loss|err$|cost", name, re.IGNORECASE):
        return True
    calls = [one for one in of_its_own(spot.function) if isinstance(one, ast.Call)]
    losses = [
        one for one in calls if re.search("loss|criterion|entropy", ast.unparse(one.func), re.IGNORECASE)
    ]
    return any(ast.unparse(given) == name for one in losses for given in one.args)


def _calls_in(node: ast.AST) -> bool:
    return any(isinstance(one, ast.Call) for one in ast.walk(node))
