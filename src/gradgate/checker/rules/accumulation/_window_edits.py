"""Edits the loops that accumulate: the length of a window and its divisor."""

from __future__ import annotations

import ast
import re

from gradgate.checker.analysis._scopes import argument, last_name, own_nodes
from gradgate.checker.analysis._statement import Statement, method, operand, owner
from gradgate.checker.fixes import Change, Fix, Insert, Replace

_OF_CLASSES = ("cross_entropy", "nll_loss", "CrossEntropyLoss", "NLLLoss")
_OF_VALUES = (
    *(
        "mse_loss",
        "l1_loss",
        "smooth_l1_loss",
        "huber_loss",
        "MSELoss",
        "L1Loss",
        "SmoothL1Loss",
        "HuberLoss",
    ),
    *("binary_cross_entropy", "binary_cross_entropy_with_logits", "BCELoss", "BCEWithLogitsLoss"),
)
_DIVIDE = """\
for {group} in {optimizer}.param_groups:
    for parameter in {group}["params"]:
        if parameter.grad is not None:
            parameter.grad /= {items}"""


def counter_and_size(test: ast.AST | None) -> tuple[str, str]:
    """Return the names in ``(i + 1) % N == 0``, or in ``i % N == 0``, alone or before an ``or``."""
    test = test.values[0] if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or) else test
    found = re.fullmatch(r"\(?(\w+)(?: \+ 1)?\)? % (.+?) == 0", ast.unparse(test) if test is not None else "")
    return (found[1], found[2]) if found else ("", "")


def first_of(at: Statement) -> int:
    """Return the first value of the innermost loop's counter: 0, 1, or -1 for any other value."""
    over = at.loops[0].iter if at.loops and isinstance(at.loops[0], ast.For) else None
    start = argument(over, 1, "start") if isinstance(over, ast.Call) else None
    if start is None:
        return 0
    return start.value if isinstance(start, ast.Constant) and start.value in (0, 1) else -1  # type: ignore[return-value]


def length_of(at: Statement, counter: str) -> str:
    """Return the length of the innermost loop as its line states it, if its counter starts at 0 or 1."""
    loop = at.loops[0] if at.loops else None
    over = getattr(loop, "iter", None)
    if not isinstance(loop, ast.For) or not isinstance(over, ast.Call) or not over.args or first_of(at) < 0:
        return ""
    given, target, name = over.args[0], loop.target, getattr(over.func, "id", "")
    if name == "range" and getattr(target, "id", "") == counter and len(over.args) == 1:
        return ast.unparse(given) if isinstance(given, (ast.Name, ast.Attribute, ast.Constant)) else ""
    counts = isinstance(target, ast.Tuple) and getattr(target.elts[0], "id", "") == counter
    if name == "enumerate" and counts and isinstance(given, (ast.Name, ast.Attribute)):
        return f"len({ast.unparse(given)})" if _has_length(at, ast.unparse(given)) else ""
    return ""


def _has_length(at: Statement, name: str) -> bool:
    """Return whether a length is certain: the file has no generator and no data set without a length."""
    without = {"IterableDataset", "iter", "islice", "cycle"}
    for node in ast.walk(at.module):
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            return False
        if getattr(node, "id", getattr(node, "attr", "")) in without:
            return False
    lazy = ("map", "zip", "filter", "enumerate")
    return not any(
        isinstance(value, ast.GeneratorExp)
        or (isinstance(value, ast.Call) and ast.unparse(value.func) in lazy)
        for value in at.assigned_to(name)
    )


def divided_by_its_window(at: Statement) -> Fix | None:
    """Divide by the micro-batches that a window holds, also at the end of an epoch.

    ``at`` is any statement of the loop. Returns () if nothing in the loop divides by the size of a window, and None
    if such a division cannot be edited.
    """
    tests = [node.test for node in ast.walk(at.loops[0]) if isinstance(node, ast.If)] if at.loops else []
    counter, size = next(filter(all, map(counter_and_size, tests)), ("", ""))
    length = length_of(at, counter) if counter else ""
    nodes = list(ast.walk(at.loops[0])) if at.loops else []
    divisions = [
        node
        for node in nodes
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and ast.unparse(node.right) == size
    ]
    in_place = any(isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div) for node in nodes)
    if in_place or len(divisions) > 1 or (divisions and not length):
        return None
    if not divisions:
        return ()
    ordinal = f"({counter} - 1)" if first_of(at) == 1 else counter
    held = f"min({size}, {length} - {ordinal} // {size} * {size})"
    old = divisions[0]
    return (Replace(old.lineno, ast.unparse(old), f"{operand(old.left)} / {held}"),)


def divided_by_its_items(at: Statement) -> Fix:
    """Weight each micro-batch's mean by its items, and divide the gradients once by all items of the window.

    ``at`` is the statement that divides a mean by the number of micro-batches.
    """
    divisions, steps, clears = at.divisions(), at.steps(), _clears(at)
    if len(divisions) != 1 or len(steps) != 1 or len(clears) != 1 or not at.loops:
        return ()
    count = _items(at, divisions[0].left)
    names = {node.id for node in ast.walk(at.module) if isinstance(node, ast.Name)}
    items = next((name for name in ("items", "n_items", "window_items") if name not in names), "")
    group = "group" if "group" not in names else "parameter_group"
    if (
        not count
        or {"parameter", "parameter_group"} & names
        or not items
        or any("scaler" in name for name in names)
        or owner(clears[0]) != owner(steps[0])
    ):
        return ()
    loop = at.loops[-1]
    clips = [
        node
        for node in own_nodes(at.function)
        if isinstance(node, ast.stmt)
        and method(node).startswith("clip_grad")
        and node.lineno < steps[0].lineno
    ]
    place = min([steps[0].lineno, *(node.lineno for node in clips)])
    divide = _DIVIDE.format(optimizer=owner(steps[0]), items=items, group=group)
    changes: list[Change] = [
        Insert(f"{items} = 0", before=loop.lineno),
        Replace(at.line, ast.unparse(divisions[0]), f"{operand(divisions[0].left)} * {count}"),
        Insert(f"{items} += {count}", after=at.line),
        Insert(divide, before=place),
        Insert(f"{items} = 0", after=clears[0].lineno),
    ]
    return tuple(changes)


def counted_by_its_items(at: Statement, *, proved: bool) -> Fix:
    """Leave out the count passed to an accumulator, or correct it if the graph doesn't show the number of items."""
    calls = [call for call in at.calls("backward") if any(each.arg == "count" for each in call.keywords)]
    if len(calls) != 1 or not calls[0].args:
        return ()
    count = next(each for each in calls[0].keywords if each.arg == "count")
    if not proved:
        items = _items(at, calls[0].args[0])
        return (Replace(at.line, ast.unparse(count.value), items),) if items else ()
    others = [each for each in calls[0].keywords if each is not count]
    without = ast.Call(calls[0].func, calls[0].args, others)
    return (Replace(at.line, ast.unparse(calls[0]), ast.unparse(without)),)


def _clears(at: Statement) -> list[ast.stmt]:
    """Return the statements of the function that clear gradients."""
    return [
        node for node in own_nodes(at.function) if isinstance(node, ast.Expr) and method(node) == "zero_grad"
    ]


def _items(at: Statement, mean: ast.expr) -> str:
    """Return the number of items in a mean, as an expression; "" if unknown."""
    value: ast.expr | None = mean
    if isinstance(mean, ast.Name):
        made = [
            node.value
            for node in at.block
            if isinstance(node, ast.Assign)
            and node.lineno < at.line
            and ast.unparse(node.targets[0]) == mean.id
        ]
        value = made[-1] if made else None
    if not isinstance(value, ast.Call) or len(value.args) < 2 or not isinstance(value.args[1], _SIMPLE):
        return ""
    maker: ast.Call = value
    if last_name(value.func) not in (*_OF_CLASSES, *_OF_VALUES):
        known = at.assigned_to(ast.unparse(value.func))
        if len(known) != 1 or not isinstance(known[0], ast.Call):
            return ""
        maker = known[0]
    options = {keyword.arg: keyword.value for keyword in maker.keywords}
    if options.keys() - {"ignore_index", "label_smoothing", "pos_weight", "beta", "delta"}:
        return ""
    target, name = ast.unparse(value.args[1]), last_name(maker.func)
    if name in _OF_VALUES:
        return f"{target}.numel()"
    ignored = ast.unparse(options["ignore_index"]) if "ignore_index" in options else "-100"
    return f"({target} != {ignored}).sum()" if name in _OF_CLASSES else ""


_SIMPLE = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)
