"""Finds means over the ranks that are never taken, or taken over unequal numbers of items."""

from __future__ import annotations

import ast
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Literal

from gradgate.checker.analysis._grouping import grouped, union
from gradgate.checker.analysis._history import StepWindow
from gradgate.checker.analysis._oracle import Share, columns_of, listed, shares, spread
from gradgate.checker.analysis._queries import windows_of
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._scopes import called, last_name, own_nodes
from gradgate.checker.analysis._source import function_at, inside, text_of, tree_of
from gradgate.checker.analysis._trainers import one_line
from gradgate.checker.rules._rule import Finding, Rule, Severity
from gradgate.events import Frame, Ids, Reduced, Site, Written

LEAST = 3  # steps, or backward calls: fewer are not reported
_UNEQUAL = 1.05
_EQUAL = 1e-6  # relative: the values are compared by norms
_FEW_ELEMENTS = 2  # such collectives carry counts or losses
# Functions that copy gradients into a buffer or out of it, with all their values unchanged.
_COPYING = re.compile(
    "all_reduce|append|cat|clone|contiguous|copy_|detach|empty|enumerate|flatten|get_world_size|is_initialized|len|"
    "list|named_parameters|narrow|numel|parameters|parameters_to_vector|range|ravel|reshape|reshape_as|size|split|"
    "split_with_sizes|sum|tuple|view|view_as|wait|zip|_flatten_dense_tensors|_unflatten_dense_tensors"
)
RANKS = re.compile(r"world|rank|replica|gpu|proc|device|worker", re.IGNORECASE)


def sums_over_ranks(event: Reduced) -> bool:
    """Return whether a collective sums over the ranks."""
    other = ("avg", "max", "min", "product")
    return event.op.startswith("all_reduce") and not any(name in event.op for name in other)


def reduced_between(run: Run, start: int, stop: int, atom: Ids) -> tuple[list[Reduced], float]:
    """Return the collectives of these gradients between two events, and the total factor applied by hand."""
    reduced, factor = [], 1.0
    for event in run.events[start:stop]:
        if isinstance(event, Reduced) and event.parameters & atom:
            reduced.append(event)
        elif isinstance(event, Written) and event.target == "gradient" and event.parameters & atom:
            factor *= event.factor if event.factor is not None else 1.0
    return reduced, factor


def differ(values: Sequence[float]) -> bool:
    """Return whether norms of one parameter on several ranks are unequal."""
    return max(values) - min(values) > _EQUAL * max(map(abs, values))


def averaged(run: Run, window: StepWindow) -> bool:
    """Return whether the gradients that a step uses are means over the ranks."""
    return _combined(run, window) == "averaged"


def _combined(run: Run, window: StepWindow) -> Literal["averaged", "added"] | None:
    """Return how the gradients that a step uses were combined over the ranks; None if unknown."""
    if any(run.backward(number).synced for number in window.micro):
        return "averaged"
    atom: Ids = next((each.atom for each in window.fresh if each.backward >= 0), frozenset())
    reduced, factor = reduced_between(run, min(window.micro, default=window.step), window.step, atom)
    if any("avg" in event.op for event in reduced):
        return "averaged"
    if not any(map(sums_over_ranks, reduced)):
        return None
    return "averaged" if abs(factor * run.log.world - 1) < 1e-3 else "added"


def is_one_mean(run: Run, window: StepWindow) -> bool:
    """Return whether the window's losses add up to one mean over the rank's items."""
    return _is_one([*zip(*columns_of(run, window, list(window.micro)), strict=True)])


def _is_one(rows: Sequence[Sequence[Share]]) -> bool:
    """Return whether each backward call has one term, and the weights of these terms add up to 1."""
    alone = rows and all(len(row) == 1 for row in rows)
    return bool(alone) and abs(sum(row[0].factor or 0.0 for row in rows) - 1) < 1e-3


# Never divided


def never_divided(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report mean losses whose gradients are summed over the ranks by hand and not divided before the step."""
    # After the first steps, few losses are read.
    read = [window for window in run.windows if all(run.backward(number).seen for number in window.micro)]
    summed = ((window.optimizer, _summed_only(run, window)) for window in read)
    for optimizer, several in grouped((owner, site) for owner, site in summed if site is not None).items():
        most = sum(window.optimizer == optimizer for window in read)
        if len(several) < max(LEAST, most - 1) or _divides_somewhere(several[-1]):
            continue
        yield rule.finding(
            several[-1],
            f"The gradients of {run.log.world} ranks are summed and never divided, in {len(several)} steps. Each "
            "rank's loss is a mean over its own items.",
            why=f"The gradient is {run.log.world} times the gradient of the mean over all items, and grows with "
            "the number of ranks.",
            advice="Divide after the sum: parameter.grad /= dist.get_world_size().",
            count=len(several),
            evidence={"ranks": run.log.world, "steps": len(several)},
        )


def _divides_somewhere(site: Site) -> bool:
    """Return whether the source seems to divide or multiply by the number of ranks. Some spellings are missed."""
    nodes = inside(ast.AST, *map(tree_of, {frame.file for frame in site}))
    scaling = (
        node
        for node in nodes
        if isinstance(getattr(node, "op", None), (ast.Div, ast.Mult))
        or (isinstance(node, ast.Call) and re.search("div|mul", called(node)))
    )
    return any(RANKS.search(name) for node in scaling for name in _names_outside_slices(node))


def _names_outside_slices(node: ast.AST) -> Iterator[str]:
    """Yield the names and texts in a node, without the bounds of slices: ``x[rank::world] * 20`` scales by 20."""
    if not isinstance(node, ast.Slice):
        yield last_name(node) or str(getattr(node, "value", "") if isinstance(node, ast.Constant) else "")
        for child in ast.iter_child_nodes(node):
            yield from _names_outside_slices(child)


def _summed_only(run: Run, window: StepWindow) -> Site | None:
    events = [run.backward(number) for number in window.micro]
    if not events or any(event.synced is not None or event.managed for event in events):
        return None
    for made in run.made[window.optimizer]:
        # The steps of other optimizers don't depend on the gradient's scale, and a learning rate may suit a sum.
        if made.kind != "SGD" or RANKS.search(text_of(innermost(made.site))):
            return None
    if any(contribution.clips for contribution in (*window.fresh, *window.stale)):
        return None
    between = run.events[window.micro[-1] : window.step]
    summed = [event for event in between if isinstance(event, Reduced) and event.parameters]
    if not summed:
        summed = _in_a_buffer(run, window)
        one_mean = _is_one([shares(run.terms(number, window.parameters)) for number in window.micro])
        return summed[-1].site if summed and one_mean else None
    if any(contribution.backward < 0 for contribution in (*window.fresh, *window.stale)):
        return None
    times = [number for event in summed for number in event.parameters]
    once = len(times) == len(set(times)) and set(times) == window.parameters
    if not once or not all(map(sums_over_ranks, summed)):
        return None
    return summed[-1].site if is_one_mean(run, window) else None


def _in_a_buffer(run: Run, window: StepWindow) -> list[Reduced]:
    """Return the collectives of buffers that hold the gradients, if the source only copies these in and out."""
    between = run.events[window.micro[-1] : window.step]
    reduced = [event for event in between if isinstance(event, Reduced) and event.numel > _FEW_ELEMENTS]
    written = [event for event in between if isinstance(event, Written) and event.target == "gradient"]
    size = sum(math.prod(run.parameters[number].shape) for number in window.parameters)
    held = sum(event.numel for event in reduced) == size and all(map(sums_over_ranks, reduced))
    copied = union(event.parameters for event in written) == window.parameters
    if not held or not copied or any(event.factor for event in written):
        return []
    function = reduced[-1].site[0]
    together = all(event.site and event.site[0][::2] == function[::2] for event in written)
    return (
        reduced if together and _only_copies(function, between[0].site, run.events[window.step].site) else []
    )


def _only_copies(reduces: Frame, backward: Site, step: Site) -> bool:
    """Return whether the reducing function changes no values between the backward call and the step."""
    lines = [[frame.line for frame in site if frame[::2] == reduces[::2]] for site in (backward, step)]
    after, before = (at[0] if at else None for at in lines)
    nodes = own_nodes(function_at(reduces))
    own = [node for node in nodes if (after or 0) < getattr(node, "lineno", 0) < (before or math.inf)]
    return all(_COPYING.fullmatch(called(node)) for node in own if isinstance(node, ast.Call)) and not any(
        isinstance(getattr(node, "op", None), (ast.Div, ast.Mult)) for node in own
    )


# Unequal numbers of items


def unless_rare(unequal: int, windows: int) -> Severity | None:
    """Return "info" if less than a quarter of the windows are unequal, since these may be the ends of epochs."""
    return None if unequal * 4 >= windows else "info"


def uneven(runs: Sequence[Run], rule: Rule) -> Iterator[Finding]:
    """Report mean losses whose gradients are averaged or added over ranks with unequal numbers of items."""
    found: dict[tuple[Site, str], list[list[tuple[float, float]]]] = defaultdict(list)
    compared = 0
    for how, pairs in combined_side_by_side(runs):
        compared += 1
        columns = [columns_of(run, window, list(window.micro)) for run, window in pairs]
        if len({len(column) for column in columns}) != 1:
            continue
        for several in zip(*columns, strict=True):
            ranks = [_of_rank(column) for column in several]
            if len({column[0].term.site for column in several}) == 1 and _is_unequal(ranks):
                found[several[0][0].term.site, how].append(ranks)
                break
    for (site, combined), unequal in found.items():
        worst = max(unequal, key=lambda ranks: spread(weight / items for weight, items in ranks))
        items = [count for _, count in worst]
        times = spread(weight / count for weight, count in worst)
        yield rule.finding(
            site,
            f"Each rank's loss is a mean over its own items ({listed(items)}), but the gradients are {combined} "
            f"as if the counts were equal: an item on the rank with the fewest weighs {times:.3g} times as much as "
            "an item on the rank with the most.",
            why="The mean of the ranks' means isn't the mean over all items: items on ranks with few items "
            "count too much.",
            advice=one_line(runs[0])
            or "Add up the number of items over the ranks with all_reduce and use "
            f"loss.sum(){' * world_size' * (combined == 'averaged')} / items_of_all_ranks, or use "
            "gradgate.Accumulator, which does this.",
            severity=unless_rare(len(unequal), compared),
            count=len(unequal),
            evidence={"items": items, "times": times, "ranks": len(runs)},
        )


def combined_side_by_side(
    runs: Sequence[Run],
) -> Iterator[tuple[Literal["averaged", "added"], list[tuple[Run, StepWindow]]]]:
    """Yield how each step's gradients were combined over the ranks, and each rank's run and window.

    An optimizer's steps are left out if the ranks have different numbers of windows.
    """
    for optimizer in sorted(runs[0].stepping):
        several = [windows_of(run, optimizer) for run in runs]
        if len({len(windows) for windows in several}) == 1:
            for windows in zip(*several, strict=True):
                pairs = list(zip(runs, windows, strict=True))
                first, *others = (_combined(run, window) for run, window in pairs)
                if first is not None and all(each == first for each in others):
                    yield first, pairs


def _of_rank(column: list[Share]) -> tuple[float, float]:
    """Return the total weight and the number of a rank's items, or zeros if unknown."""
    if any(share.items is None for share in column):
        return 0.0, 0.0
    items = sum(share.items or 0.0 for share in column)
    return sum(share.per_item * (share.items or 0.0) for share in column), items


def _is_unequal(ranks: Sequence[tuple[float, float]]) -> bool:
    if not all(weight and items for weight, items in ranks):
        return False
    # Report only weights that follow the number of items: other weights may be intended.
    weights = spread(weight for weight, _ in ranks)
    return spread(items for _, items in ranks) > _UNEQUAL and weights < 1.02
