"""Finds loops that compute several losses, only the last of which is back-propagated."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from gradgate.checker.analysis._parameter_usage import unreached
from gradgate.checker.analysis._queries import combinations, with_line_of
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import (
    called,
    definitions,
    is_read,
    key_of,
    names_read,
    names_stored,
    scope_at,
)
from gradgate.checker.analysis._source import loops_around, spans, statement_at
from gradgate.checker.analysis._statement import Statement
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.events import Backward, Frame, Site

_TIMES = 2
_SHOWS = ("item", "detach", "tolist", "numpy", "data")
_SHOWN_BY = ("print", "float")


def only_the_last(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report losses of a loop, if the line of ``backward()`` comes after the loop.

    Each iteration divides its loss by the number of iterations, or computes its loss from other data.
    """
    yield from _overwritten(run, rule)
    found: dict[tuple[Site, Frame], list[float]] = defaultdict(list)
    for event in run.of(Backward):
        factors = [factor for term in event.terms for factor in term.factors]
        divided = {(where[0], number) for op, number, where in factors if op == "div" and where}
        # A loss that includes several iterations has a term of each line for each iteration.
        once = len({term.site for term in event.terms}) == len(event.terms)
        if event.site and event.reached & run.owned and once and len(divided) == 1:
            ((line, number),) = divided
            found[event.site, line] += [number] if number > 1 else []
    for (site, line), passes in found.items():
        loop = next(iter(loops_around(line)), None)
        outside = loop is not None and line.file == site[0].file and not spans(loop, site[0].line)
        if outside and isinstance(loop, ast.For) and len(passes) >= _TIMES and _is_mean(loop, line):
            yield rule.finding(
                site,
                f"Each of {passes[0]:g} iterations of the loop at line {loop.lineno} computes a loss and divides "
                "it by the number of iterations, but only the last loss is back-propagated.",
                why="The other losses are displayed, but training does not minimize them.",
                advice="Call backward() inside the loop, on each loss.",
                count=len(passes),
                evidence={"passes": passes[0]},
            )


def _is_mean(loop: ast.For, line: Frame) -> bool:
    """Return whether a line divides by the ``n`` of ``for ... in range(n)``, and iterations are independent."""
    nodes = ast.walk(statement_at(line) or ast.Pass())
    divisions = [node for node in nodes if isinstance(getattr(node, "op", None), ast.Div)]
    divisors = {ast.unparse(getattr(node, "right", getattr(node, "value", node))) for node in divisions}
    over = loop.iter
    counted = isinstance(over, ast.Call) and called(over) == "range" and list(map(ast.unparse, over.args))
    return counted in [[each] for each in divisors] and not _carried(loop, line)


def _overwritten(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report a loss that each iteration of a loop overwrites, so that only the last one is back-propagated.

    The line must compute each loss from other data, and start from 0 (``loss = 0``) or leave the losses unread,
    or leave other parameters without a gradient.
    """
    found: dict[Frame, tuple[ast.For, str, list[int]]] = {}
    missing = unreached(run)
    for one in combinations(run, {"dropped"}):
        if len(one.numbers) < _TIMES or not one.ids:
            continue
        for frame in one.site:
            loop, name = next(iter(loops_around(frame)), None), _assigned(frame)
            after = [
                each.line for each, line in with_line_of(one.first.backward, (frame,)) if line is not None
            ]
            if not isinstance(loop, ast.For) or not name or any(spans(loop, line) for line in after):
                continue
            copy = next(
                (node for node in loop.body if ast.unparse(getattr(node, "value", node)) == name), None
            )
            total = _assigned(frame._replace(line=copy.lineno)) if copy is not None else ""  # total = loss
            names = {name, total or name}
            if _drops_losses(loop, frame, names, getattr(copy, "value", None), untrained=bool(missing)):
                name = total or name
                found.setdefault(frame, (loop, name, []))[2].append(one.times)
    for frame, (loop, name, times) in found.items():
        yield rule.finding(
            frame,
            f"Each iteration of the loop at line {loop.lineno} assigns a new loss to `{name}`, but nothing has "
            f"added up the earlier losses: {max(times)} backward calls include only the last one.",
            why="Training minimizes only the last of these losses.",
            advice=f"Add the losses up: {name} = {name} + ..., starting from 0.",
            count=max(times),
            evidence={"backward_calls": max(times)},
            about=missing,
        )


def _assigned(line: Frame) -> str:
    """Return the variable that a line assigns in each iteration of its loop, or ""."""
    at = Statement.at(line)
    node = at.node if at is not None else None
    if at is None or not isinstance(node, ast.Assign) or not at.loops or node not in at.loops[0].body:
        return ""
    target = node.targets[0]
    return target.id if isinstance(target, ast.Name) else ""


def _drops_losses(
    loop: ast.For, line: Frame, names: set[str], copy: ast.expr | None, *, untrained: bool
) -> bool:
    """Return whether a loop overwrites losses that it should add up.

    ``copy``: where it copies the variable. ``untrained``: whether some parameters get no gradient at all, so that
    losses which are also displayed are not computed for display alone.
    """
    statement, scope = statement_at(line), scope_at(line)
    inner = [node for part in loop.body for node in ast.walk(part)]
    if scope is None or any(isinstance(node, (ast.Break, ast.Return)) for node in inner):
        return False
    shown: list[ast.AST | None] = [copy]
    for node in inner:
        if isinstance(node, ast.FormattedValue) or (isinstance(node, ast.Attribute) and node.attr in _SHOWS):
            shown.append(node.value)
        shown += node.args if isinstance(node, ast.Call) and called(node) in _SHOWN_BY else []
    reads = [node for node in inner if is_read(node) and node.id in names and node is not copy]
    made = [each for name in names for each in definitions(scope).get(name, ())]
    if any(read not in shown for read in reads) or sum(each.statement in inner for each in made) != len(
        names
    ):
        return False
    starts = any(_is_zero(each.value) for each in made if getattr(each.statement, "lineno", 0) < loop.lineno)
    carried = _carried(loop, line)
    taken = [_sources(loop, names_read(each)) for each in _operands(getattr(statement, "value", ast.Pass()))]
    varies = any(each & names_stored(loop.target) and not each & carried for each in taken)
    return (starts and (varies or not carried)) or (varies and (untrained or not reads))


def _is_zero(value: ast.expr) -> bool:
    """Return whether a value is 0, or a tensor that is made of 0: ``torch.tensor(0.0)``, ``torch.zeros(1)``."""
    if isinstance(value, ast.Call) and called(value) in ("tensor", "zeros", "as_tensor"):
        return called(value) == "zeros" or (bool(value.args) and _is_zero(value.args[0]))
    return isinstance(value, ast.Constant) and value.value == 0 and value.value is not False


def _operands(value: ast.AST) -> list[ast.AST]:
    """Return the values that an expression compares: the arguments of its outermost calls, and operands."""
    if isinstance(value, ast.Call):
        chained = value.func.value if isinstance(value.func, ast.Attribute) else None
        of = _operands(chained) if isinstance(chained, (ast.BinOp, ast.Call)) else []
        return [*of, *value.args, *(each.value for each in value.keywords)]
    if isinstance(value, ast.BinOp):
        return [*_operands(value.left), *_operands(value.right)]
    return [value]


def _sources(loop: ast.For, names: set[str]) -> set[str]:
    """Return these names, and the names from which the loop's body computes them."""
    made = [node for part in loop.body for node in ast.walk(part) if isinstance(node, ast.Assign)]
    for _ in made:
        names = names.union(*(names_read(node.value) for node in made if names_stored(*node.targets) & names))
    return names


def _carried(loop: ast.For, line: Frame) -> set[str]:
    """Return the names that carry a value into the next iteration, so that the last loss may include all."""
    scope, carried = scope_at(line), set()
    inside = {node for part in loop.body for node in ast.walk(part)}
    names = [node for node in inside if isinstance(node, (ast.Name, ast.Attribute))]
    for key, several in definitions(scope).items() if scope is not None else ():
        own = [each for each in several if each.statement in inside and key != "self"]
        reads = [node.lineno for node in names if isinstance(node.ctx, ast.Load) and key_of(node) == key]
        # ``losses.append(loss)`` and ``losses[task] = loss`` read the name once.
        adding = {each.statement for each in own if not each.whole and not hasattr(each.statement, "op")}
        first = min((each.value.end_lineno or 0 for each in own), default=0)
        if len(reads) > len(adding) if adding else any(read <= first for read in reads):
            carried.add(key)
    return carried
