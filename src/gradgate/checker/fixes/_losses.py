"""What goes into a loss, and what it is divided by."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from gradgate.checker.fixes._edit import Edit
from gradgate.checker.fixes._spot import VALUES, Spot, method, of_its_own, owner
from gradgate.checker.rules._finding import Finding


def window(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Count from 1 in the condition of the step, and step for what is left at the end of the loop."""
    test = getattr(spot.statement, "test", None)
    if not isinstance(test, ast.Compare) or len(test.ops) > 1:
        return []
    if finding.advice.startswith("Step after"):
        if not isinstance(test.ops[0], ast.Gt):
            return []
        return spot.operator(test.left, test.comparators[0], ">", ">=")
    loop = spot.loops[0] if spot.loops else None
    found = re.match(r"\(?(\w+)( \+ 1)?\)? % (.+?) == 0$", ast.unparse(test))
    if found is None or not isinstance(loop, ast.For) or not isinstance(spot.statement, ast.If):
        return []
    counter, _, size = found.groups()
    length = _length(loop, counter)
    named = re.match(r"len\((.+)\)$", length)
    if named is not None and not _has_length(spot, named[1]):
        return []
    # What is left over and divided by the size of a whole window would count too little.
    divided = any(
        isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and ast.unparse(node.right) == size
        for node in ast.walk(loop)
    )
    if not length or (divided and finding.advice.startswith("Step once more")):
        return []
    return spot.replaced(test, f"({counter} + 1) % {size} == 0 or {counter} + 1 == {length}")


def _length(loop: ast.For, counter: str) -> str:
    """Return how long a loop is whose counter goes up from 0, as far as its line says so."""
    over, target = loop.iter, loop.target
    if not isinstance(over, ast.Call) or len(over.args) != 1 or over.keywords:
        return ""
    given, name = over.args[0], getattr(over.func, "id", "")
    if name == "range" and getattr(target, "id", "") == counter:
        return ast.unparse(given) if isinstance(given, (ast.Name, ast.Attribute, ast.Constant)) else ""
    counts = isinstance(target, ast.Tuple) and getattr(target.elts[0], "id", "") == counter
    if name == "enumerate" and counts and isinstance(given, (ast.Name, ast.Attribute)):
        return f"len({ast.unparse(given)})"
    return ""


def _has_length(spot: Spot, name: str) -> bool:
    """Say whether nothing in the file speaks against it: no generator, no data set without a length."""
    odd = {"IterableDataset", "iter", "islice", "cycle"}
    nodes = list(ast.walk(spot.path[0]))
    if any(
        isinstance(one, (ast.Yield, ast.YieldFrom)) or getattr(one, "id", getattr(one, "attr", "")) in odd
        for one in nodes
    ):
        return False
    lazy = ("map", "zip", "filter", "enumerate")
    return not any(
        isinstance(one, ast.GeneratorExp) or (isinstance(one, ast.Call) and ast.unparse(one.func) in lazy)
        for one in spot.made_of(name)
    )


def scaling(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Divide the loss by the number of micro-batches."""
    size = finding.evidence.get("micro_batches")
    value = getattr(spot.statement, "value", None)
    if finding.advice.startswith("(loss / "):
        size = _window_of(spot, size) or size
        if isinstance(spot.statement, ast.Assign) and isinstance(value, (*VALUES, ast.BinOp)):
            if len(spot.statement.targets) > 1 or not isinstance(spot.statement.targets[0], ast.Name):
                return []
            product = isinstance(value, VALUES) or isinstance(value.op, (ast.Div, ast.Mult))
            return (
                spot.wrapped(value, "", f" / {size}") if product else spot.wrapped(value, "(", f") / {size}")
            )
        if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
            return []
        of = value.func.value
        known = value.func.attr == "backward" and isinstance(of, VALUES)
        return spot.wrapped(of, "(", f" / {size})") if known else []
    divisions = spot.divisions()
    if not finding.advice.startswith("Divide by the number of micro-batches in") or len(divisions) != 1:
        return []
    if re.search(r"divided by \d+ and by", finding.message):  # it is divided elsewhere, too
        return []
    return spot.replaced(divisions[0].right, _window_of(spot, size) or str(size))


def _window_of(spot: Spot, size: object) -> str:
    """Return what the condition of a step counts to, as it is written; "" where that is not this size for sure."""
    names = set()
    for node in of_its_own(spot.function):
        if isinstance(node, ast.If) and spot.steps(within=node):
            names |= {
                ast.unparse(one.right)
                for one in ast.walk(node.test)
                if isinstance(one, ast.BinOp)
                and isinstance(one.op, ast.Mod)
                and isinstance(one.right, VALUES)
            }
    given = [one for name in names for one in spot.made_of(name)]
    known = len(names) == len(given) == 1 and isinstance(given[0], ast.Constant) and given[0].value == size
    return names.pop() if known else ""


def divided_again(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Leave a second division out; divide by what a mask leaves, and not by all positions."""
    if finding.advice.startswith("Leave the division out"):
        divisions = spot.divisions()
        return spot.replaced(divisions[0], spot.operand(divisions[0].left)) if len(divisions) == 1 else []
    if finding.advice.startswith("Sum over the classes and take the mean over the samples"):
        means = [
            key.value
            for call in spot.calls("kl_div")
            for key in call.keywords
            if key.arg == "reduction" and isinstance(key.value, ast.Constant)
        ]
        return spot.replaced(means[0], '"batchmean"') if len(means) == 1 else []
    if not finding.advice.startswith("(loss * mask).sum()"):
        return []
    for call in spot.calls("mean"):
        product = getattr(call.func, "value", None)
        if (
            call.args
            or call.keywords
            or not isinstance(product, ast.BinOp)
            or not isinstance(product.op, ast.Mult)
        ):
            continue
        masks = [
            one for one in (product.left, product.right) if re.search("mask|valid|keep", ast.unparse(one))
        ]
        if len(masks) == 1 and isinstance(masks[0], VALUES):
            text = f"({spot.source(product)}).sum() / {spot.source(masks[0])}.sum()"
            return spot.replaced(
                call, text if getattr(spot.statement, "value", None) is call else f"({text})"
            )
    return []


def counted_twice(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Take the backward call out whose loss is a part of a later one."""
    later = re.search(r"is also a part of the one of line (\d+)", finding.message)
    if later is not None:
        last = [one for one in spot.statements("backward") if one.lineno == int(later[1])]
        between = [one for one in spot.block if spot.statement.lineno < one.lineno < int(later[1])]
        # What stands between makes the other loss, and does not look at gradients.
        makes = all(
            isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == owner(last[0])
            for one in between
            if last
        )
        return spot.removed() if last and makes and method(spot.statement) == "backward" else []
    return []


def leak(finding: Finding, spot: Spot) -> Sequence[Edit]:
    """Give a module what it reads without its graph."""
    calls = [
        one
        for one in spot.calls()
        if len(one.args) == 1 and not one.keywords and isinstance(one.args[0], ast.Name)
    ]
    if finding.advice.startswith("Give the probe"):
        named = re.search(r", that of (.+?), also moves", finding.message)
        path = set(re.split(r"[., ]+", named[1])) if named is not None else set()
        calls = [one for one in calls if ast.unparse(one.func).rpartition(".")[2] in path]
        return spot.wrapped(calls[0].args[0], "", ".detach()") if len(calls) == 1 else []
    left = re.search(r"left in (\w+)\.", finding.message)
    if left is None:
        return []
    # What the module of these parameters made, in the lines before.
    made = {
        one.targets[0].id
        for one in spot.block
        if isinstance(one, ast.Assign)
        and one.lineno < spot.statement.lineno
        and isinstance(one.targets[0], ast.Name)
        and isinstance(one.value, ast.Call)
        and ast.unparse(one.value.func).rpartition(".")[2] == left[1]
    }
    given = [one.args[0] for one in calls if one.args[0].id in made]  # type: ignore[attr-defined]
    if isinstance(spot.statement, ast.Assign) and _used(spot, spot.statement.targets[0]) > 1:
        return []  # in another loss, too, for which it has to keep its graph
    return spot.wrapped(given[0], "", ".detach()") if len(given) == 1 else []


def _used(spot: Spot, target: ast.AST) -> int:
    """Return how many later statements of the block use a value with its graph, until it is another one."""
    name, times = ast.unparse(target), 0
    for one in spot.block:
        if one.lineno <= spot.statement.lineno:
            continue
        names = [node for node in ast.walk(one) if isinstance(node, ast.Name) and node.id == name]
        number = re.search(r"\.item\(\)|\.detach\(\)|print\(", ast.unparse(one))
        times += any(isinstance(node.ctx, ast.Load) for node in names) and number is None
        if any(isinstance(node.ctx, ast.Store) for node in names):
            break
    return times
