"""Edits the loops that accumulate: the length of a window and its divisor."""

from __future__ import annotations

import ast
import re
from typing import NamedTuple

from gradgate.checker.analysis._scopes import argument, last_name, own_nodes
from gradgate.checker.analysis._source import inside
from gradgate.checker.analysis._statement import CLOSED, Statement, method, operand, owner
from gradgate.checker.fixes import Fix, Insert, Replace

_OF_CLASSES = re.compile("cross_entropy|nll_loss|CrossEntropyLoss|NLLLoss")
_OF_VALUES = re.compile(
    "(mse|l1|smooth_l1|huber)_loss|(MSE|L1|SmoothL1|Huber)Loss"
    "|binary_cross_entropy(_with_logits)?|BCE(WithLogits)?Loss"
)
_DIVIDE = """\
for {group} in {optimizer}.param_groups:
    for parameter in {group}["params"]:
        if parameter.grad is not None:
            parameter.grad /= {items}"""


class Count(NamedTuple):
    """A loop's counter of micro-batches in a condition such as ``(i + 1) % N == 0``."""

    counter: str
    size: str
    first: int  # the counter's first value: 0, 1, or -1 for any other value
    length: str  # of the loop, as its line states it; "" if unknown
    counts_each: bool  # the loop itself counts: each iteration adds 1

    @property
    def last(self) -> str:
        """The condition that holds at the loop's last micro-batch; "" if the length is unknown."""
        ordinal = self.counter if self.first == 1 else f"{self.counter} + 1"
        return self.length and f"{ordinal} == {self.length}"


def count_in(at: Statement, test: ast.AST | None) -> Count | None:
    """Return the counter in ``(i + 1) % N == 0`` or ``i % N == 0``, even before an ``or``; otherwise None."""
    test = test.values[0] if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or) else test
    found = re.fullmatch(r"\(?(\w+)(?: \+ 1)?\)? % (.+?) == 0", ast.unparse(test) if test is not None else "")
    if found is None:
        return None
    loop = at.loops[0] if at.loops else None
    over = loop.iter if isinstance(loop, ast.For) else None
    start = argument(over, 1, "start") if isinstance(over, ast.Call) else None
    known = isinstance(start, ast.Constant) and start.value in (0, 1)
    first = 0 if start is None else start.value if known else -1  # type: ignore[attr-defined]
    length, own = "", ""
    match loop:
        case ast.For(ast.Name(own), ast.Call(ast.Name("range"), [given])) if own == found[1]:
            length = ast.unparse(given) if isinstance(given, (ast.Name, ast.Attribute, ast.Constant)) else ""
        case ast.For(ast.Tuple([ast.Name(own), *_]), ast.Call(ast.Name("enumerate"), [given, *_])):
            simple = isinstance(given, (ast.Name, ast.Attribute)) and own == found[1]
            length = f"len({ast.unparse(given)})" if simple and _has_length(at, ast.unparse(given)) else ""
    return Count(found[1], found[2], first, length if first >= 0 else "", own == found[1])


def _has_length(at: Statement, name: str) -> bool:
    """Return whether a length is certain: the file has no generator and no data set without a length."""
    without = {"IterableDataset", "iter", "islice", "cycle"}
    lazy = ("map", "zip", "filter", "enumerate")
    return not any(
        isinstance(node, (ast.Yield, ast.YieldFrom)) or last_name(node) in without
        for node in ast.walk(at.module)
    ) and not any(
        isinstance(value, ast.GeneratorExp)
        or (isinstance(value, ast.Call) and ast.unparse(value.func) in lazy)
        for value in at.assigned_to(name)
    )


def divided_by_its_window(at: Statement) -> Fix | None:
    """Return the edit that divides by the number of micro-batches in each window, even in a shorter last window.

    ``at`` is any statement of the loop. The result is () if nothing in the loop divides by the size of a window,
    and None if such a division cannot be edited.
    """
    loop = at.loops[0] if at.loops else None
    count = next(filter(None, (count_in(at, node.test) for node in inside(ast.If, loop))), None)
    divisions = [
        node
        for node in inside(ast.BinOp, loop)
        if count is not None and isinstance(node.op, ast.Div) and ast.unparse(node.right) == count.size
    ]
    if any(isinstance(node.op, ast.Div) for node in inside(ast.AugAssign, loop)) or len(divisions) > 1:
        return None
    if count is None or not divisions:
        return ()
    size, old = count.size, divisions[0]
    ordinal = f"({count.counter} - 1)" if count.first == 1 else count.counter
    held = f"{operand(old.left)} / min({size}, {count.length} - {ordinal} // {size} * {size})"
    return (Replace(old.lineno, ast.unparse(old), held),) if count.length else None


def divided_by_its_items(at: Statement) -> Fix:
    """Weight each micro-batch's mean by its items, and divide the gradients once by all items of the window.

    ``at`` is the statement that divides a mean by the number of micro-batches.
    """
    nodes = [node for node in own_nodes(at.function) if isinstance(node, ast.stmt)]
    clears = [node for node in nodes if method(node) == "zero_grad"]
    divisions, steps = at.divisions(), at.steps()
    if not len(divisions) == len(steps) == len(clears) == 1 or not at.loops:
        return ()
    mean, loop, step = divisions[0].left, at.loops[-1], steps[0]
    count, names = _items(at, mean), {node.id for node in inside(ast.Name, at.module)}
    items = next((name for name in ("items", "n_items", "window_items") if name not in names), "")
    group = "group" if "group" not in names else "parameter_group"
    taken = {"parameter", "parameter_group"} & names or any("scaler" in name for name in names)
    if not count or not items or taken or owner(clears[0]) != owner(step):
        return ()
    clips = [node for node in nodes if method(node).startswith("clip_grad")]
    divide = _DIVIDE.format(optimizer=owner(step), items=items, group=group)
    return (
        Insert(f"{items} = 0", before=loop.lineno),
        Replace(at.line, ast.unparse(divisions[0]), f"{operand(mean)} * {count}"),
        Insert(f"{items} += {count}", after=at.line),
        Insert(divide, before=min(node.lineno for node in (step, *clips))),
        Insert(f"{items} = 0", after=clears[0].lineno),
    )


def counted_by_its_items(at: Statement, *, proved: bool) -> Fix:
    """Leave out the count passed to an accumulator, or correct it if the graph doesn't show the number of items."""
    match at.calls("backward"):
        case [ast.Call(function, [mean, *rest], keywords) as call]:
            counts = [each for each in keywords if each.arg == "count"]
            if not counts:
                return ()
            if not proved:
                items = _items(at, mean)
                return (Replace(at.line, ast.unparse(counts[0].value), items),) if items else ()
            without = ast.Call(function, [mean, *rest], [each for each in keywords if each.arg != "count"])
            return (Replace(at.line, ast.unparse(call), ast.unparse(without)),)
    return ()


def _items(at: Statement, mean: ast.expr) -> str:
    """Return the number of items in a mean, as an expression; "" if unknown."""
    value: ast.expr | None = mean
    if isinstance(mean, ast.Name):
        earlier = [node for node in at.block if isinstance(node, ast.Assign) and node.lineno < at.line]
        made = [node.value for node in earlier if ast.unparse(node.targets[0]) == mean.id]
        value = made[-1] if made else None
    if not isinstance(value, ast.Call) or len(value.args) < 2 or not isinstance(value.args[1], CLOSED):
        return ""
    maker: ast.expr = value
    known = at.assigned_to(ast.unparse(value.func))
    if len(known) == 1:
        maker = known[0]
    if not isinstance(maker, ast.Call):
        return ""
    options = {keyword.arg: keyword.value for keyword in maker.keywords}
    if options.keys() - {"ignore_index", "label_smoothing", "pos_weight", "beta", "delta"}:
        return ""
    target, name = ast.unparse(value.args[1]), last_name(maker.func)
    if _OF_VALUES.fullmatch(name):
        return f"{target}.numel()"
    ignored = ast.unparse(options["ignore_index"]) if "ignore_index" in options else "-100"
    return f"({target} != {ignored}).sum()" if _OF_CLASSES.fullmatch(name) else ""
