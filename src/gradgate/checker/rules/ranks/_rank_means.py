"""The mean over the ranks: taken twice, or not at all."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from gradgate.checker.analysis._history import Window
from gradgate.checker.analysis._loss_weights import by_place, of_window
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._source import function_at, statement_at, text_of, tree_of
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.events import Reduced, Site, Term, Written

_LEAST = 3  # steps
_RANKS = re.compile(r"world|rank|replica|gpu|proc|device|worker", re.IGNORECASE)
# What is divided, and what to write instead.
_DIVIDED = {
    "loss": (
        "The loss is divided by {} ranks, and its gradients are",
        "Leave the division of the loss out: the mean over the ranks is taken once already.",
    ),
    "total": (
        "The loss is divided by a total over {} ranks, and its gradients are",
        "Multiply the loss by the number of ranks, which makes a sum of DDP's mean.",
    ),
    "gradients": (
        "Gradients are divided by {} ranks, and they are",
        "Leave the division of the gradients out: DDP has averaged them when backward() returns.",
    ),
}


def taken_twice(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report losses and gradients divided by the number of ranks, where gradients are averaged over ranks too."""
    found: dict[tuple[Site, str], list[Window]] = defaultdict(list)
    for window in run.windows:
        if not averaged(run, window):
            continue
        for place in {*_in_the_loss(run, window), *_in_the_gradients(run, window)}:
            found[place].append(window)
    for (site, what), windows in found.items():
        if len(windows) < 2:
            continue
        said, fix = _DIVIDED[what]
        yield rule.finding(
            site,
            f"{said.format(run.log.world)} averaged over the ranks as well, in {len(windows)} steps.",
            why=f"The gradient is {run.log.world} times too small.",
            advice=fix,
            severity="error",
            count=len(windows),
            evidence={"ranks": run.log.world, "steps": len(windows)},
            about=windows[0].parameters,
        )


def _in_the_loss(run: Run, window: Window) -> Iterator[tuple[Site, str]]:
    for event in map(run.backward, window.micro):
        for term in event.terms:
            if _undone(run, term):
                continue  # what divides are the items of all ranks
            for op, divisor, site in term.factors:
                ranks = divisor if op == "div" else 1 / divisor if divisor else 0.0
                if _divides_by_ranks(run, ranks, site):
                    yield site, "loss"
                elif event.synced and op == "div" and term.kind == "sum" and _total(run, site):
                    yield site, "total"


def _in_the_gradients(run: Run, window: Window) -> Iterator[tuple[Site, str]]:
    events = [run.backward(number) for number in window.micro]
    if not all(event.synced is not None for event in events) or any(event.managed for event in events):
        return
    if any(_undone(run, term) for event in events for term in event.terms):
        return
    for event in run.events[min(window.micro) : window.step]:
        if not isinstance(event, Written) or event.target != "gradient" or not event.factor:
            continue
        if event.parameters & window.parameters and _divides_by_ranks(run, 1 / event.factor, event.site):
            yield event.site, "gradients"


def _undone(run: Run, term: Term) -> bool:
    """Say whether a loss is multiplied by the number of ranks, so that the mean over them is a sum."""
    return any(op == "mul" and _is_multiple(number, run.log.world) for op, number, _ in term.factors)


def _total(run: Run, site: Site) -> bool:
    """Say whether a line divides by a number that was summed over the ranks, and is as it was left by that."""
    frame = innermost(site)
    statement, function = statement_at(frame), function_at(frame)
    if statement is None or function is None or _RANKS.search(text_of(frame)):
        return False
    divisors = {name for node in ast.walk(statement) if (name := _divisor(node))}
    for event in run.of(Reduced):
        inner = innermost(event.site)
        if (
            event.numel != 1
            or not sums_over_ranks(event)
            or (inner.file, inner.function) != (frame.file, frame.function)
        ):
            continue
        exchange = statement_at(inner)
        names = divisors & {
            node.id for node in ast.walk(exchange or ast.Pass()) if isinstance(node, ast.Name)
        }
        later = {
            node.id
            for node in ast.walk(function)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.lineno > inner.line
        }
        if names - later:
            return True
    return False


def _divisor(node: ast.AST) -> str | None:
    """Return the name that something is divided by: ``loss / total``, ``loss /= total.item()``."""
    right = None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        right = node.right
    elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
        right = node.value
    while isinstance(right, ast.Call) and isinstance(right.func, ast.Attribute):
        right = right.func.value
    return right.id if isinstance(right, ast.Name) else None


def _divides_by_ranks(run: Run, divisor: float, site: Site) -> bool:
    """Say whether a loss is divided by the number of ranks, or a multiple, and the line says so."""
    return _is_multiple(divisor, run.log.world) and bool(_RANKS.search(text_of(innermost(site))))


def _is_multiple(number: float, ranks: int) -> bool:
    times = number / ranks
    return times >= 1 and abs(times - round(times)) < 1e-6


def averaged(run: Run, window: Window) -> bool:
    """Say whether the gradients that a step uses are means over the ranks."""
    if any(run.backward(number).synced for number in window.micro):
        return True
    first = min(window.micro, default=window.step)
    reduced, factor = False, 1.0
    atom = next((one.atom for one in window.fresh if one.backward >= 0), frozenset())
    for event in run.events[first : window.step]:
        if isinstance(event, Reduced) and event.parameters & atom:
            if "avg" in event.op:
                return True
            reduced = reduced or sums_over_ranks(event)
        elif isinstance(event, Written) and event.target == "gradient" and event.parameters & atom:
            factor *= event.factor if event.factor is not None else 1.0
    return reduced and abs(factor * run.log.world - 1) < 1e-3


def not_taken(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report gradients of means that are summed over the ranks by hand, and divided by nothing before the step."""
    sites: dict[int, list[Site]] = defaultdict(list)
    for window in run.windows:
        site = _summed_only(run, window)
        if site is not None:
            sites[window.optimizer].append(site)
    for optimizer, several in sites.items():
        if len(several) < max(_LEAST, run.stepping[optimizer] - 1) or _speaks_of_division(several[-1]):
            continue
        yield rule.finding(
            several[-1],
            f"The gradients of {run.log.world} ranks are summed and divided by nothing, in {len(several)} steps; "
            "each is that of a mean over the rank's own items.",
            why=f"The gradient is {run.log.world} times that of the mean over all items: it grows with the ranks.",
            advice="parameter.grad /= dist.get_world_size(), behind the sum.",
            count=len(several),
            evidence={"ranks": run.log.world, "steps": len(several)},
        )


def _speaks_of_division(site: Site) -> bool:
    """Say whether something beside an exchange is divided by the ranks: not every way to do that is seen."""
    trees = filter(None, map(tree_of, {frame.file for frame in site}))
    return any(
        _scales(node) and _RANKS.search(ast.unparse(node)) for tree in trees for node in ast.walk(tree)
    )


def _scales(node: ast.AST) -> bool:
    if isinstance(node, (ast.BinOp, ast.AugAssign)):
        return isinstance(node.op, (ast.Div, ast.Mult))
    name = getattr(node.func, "attr", "") if isinstance(node, ast.Call) else ""
    return "div" in name or "mul" in name


def _summed_only(run: Run, window: Window) -> Site | None:
    made = run.made[window.optimizer]
    if not window.micro or any(
        one.kind != "SGD" or _RANKS.search(text_of(innermost(one.site))) for one in made
    ):
        return None  # to others the size of a gradient is all the same; a rate may be meant for a sum
    if any(
        run.backward(number).synced is not None or run.backward(number).managed for number in window.micro
    ):
        return None
    if any(one.clips or one.backward < 0 for one in (*window.fresh, *window.stale)):
        return None
    summed = [
        event
        for event in run.events[window.micro[-1] : window.step]
        if isinstance(event, Reduced) and event.parameters
    ]
    times = [number for event in summed for number in event.parameters]
    if (
        not all(map(sums_over_ranks, summed))
        or len(times) != len(set(times))
        or set(times) != window.parameters
    ):
        return None
    rows = of_window(run, window, list(window.micro))
    columns = by_place(rows) if rows else []
    if len(columns) != 1 or abs(sum(share.factor or 0.0 for share in columns[0]) - 1) > 1e-3:
        return None
    return summed[-1].site


def sums_over_ranks(event: Reduced) -> bool:
    """Say whether an exchange adds up over the ranks."""
    return event.op.startswith("all_reduce") and not any(
        name in event.op for name in ("avg", "max", "min", "product")
    )
